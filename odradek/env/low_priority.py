"""Lowest priority for a process: it leaves the processor at once, and still gets a fair share (SHELL, Linux).

A low nice value alone is not enough. A process that wakes up waits for the end of the running process' slice (about 3 ms) all
the same. Since Linux 6.12 a process that wakes up takes the place of one whose slice is longer than its own. So the
process asks for the longest slice there is (sched_setattr(2)). `SCHED_IDLE` would give way as fast, but it gets next
to nothing from a machine that is busy for hours.
"""

from __future__ import annotations

import os
import platform
import struct

NICENESS = 5
"""Threads of normal priority get three times as much time (sched(7): each step is a factor of about 1.25)."""
SLICE_NANOSECONDS = 100_000_000
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
"""The system call's number; the C library has no function for it everywhere."""
_ATTRIBUTES = struct.Struct("=IIQiIQQQII")
"""`struct sched_attr`: size, policy, flags, nice, priority, slice, deadline, period, and two bounds of use."""


def give_way() -> bool:
    """Give way to other processes from now on. Return False if the kernel, or this machine, has only nice values."""
    os.nice(NICENESS)
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return False
    # Only here: a node that starts a companion does not need it.
    import ctypes

    size = _ATTRIBUTES.size
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    asked = _ATTRIBUTES.pack(size, os.SCHED_OTHER, 0, nice, 0, SLICE_NANOSECONDS, 0, 0, 0, 0)
    result: int = ctypes.CDLL(None).syscall(number, 0, ctypes.create_string_buffer(asked, size), 0)
    return result == 0
