"""Gives this process a low priority: it yields the processor at once, but still gets a fair share. SHELL. The
module works only on Linux.

A low nice value alone is not enough. Another process that wakes up must still wait until the time slice of the
running process ends (about 3 ms). Since Linux 6.12 a process that wakes up preempts a process with a longer slice
than its own. So this process requests the longest possible slice (sched_setattr(2)). A process with the policy
`SCHED_IDLE` would yield as fast, but would get almost no time on a machine that is busy for hours.
"""

from __future__ import annotations

import contextlib
import os
import platform
import struct

NICENESS = 5
"""The nice value of this process. A thread of normal priority gets three times as much time as this process
(sched(7): each step is a factor of about 1.25).
"""
SLICE_NANOSECONDS = 100_000_000
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
"""The number of the system call `sched_setattr`, by machine. Some C libraries have no function for this call."""
_ATTRIBUTES = struct.Struct("=IIQiIQQQII")
"""`struct sched_attr`: size, policy, flags, nice, priority, slice, deadline, period, and the lower and upper bound of
utilization.
"""


MEMORY_SCORE = 500
"""Out of 1000: the kernel counts so many thousandths of the memory as if this process used them (proc(5))."""


def give_way() -> bool:
    """Lower the priority of this process from now on. Return False if only its nice value could be set."""
    os.nice(NICENESS)
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return False
    # Imported here, because a node that starts a companion does not need it.
    import ctypes

    size = _ATTRIBUTES.size
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    asked = _ATTRIBUTES.pack(size, os.SCHED_OTHER, 0, nice, 0, SLICE_NANOSECONDS, 0, 0, 0, 0)
    result: int = ctypes.CDLL(None).syscall(number, 0, ctypes.create_string_buffer(asked, size), 0)
    return result == 0


def give_memory_way() -> None:
    """Let the kernel choose this process before others, such as its node, when memory is used up. Only Linux lets it choose."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write(str(MEMORY_SCORE))
