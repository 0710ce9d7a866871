"""A separate loopback interface with segments of 8 KiB, as in a network with jumbo frames.

By default, loopback has segments of up to 64 KiB. With these, some kernels delay large answers for milliseconds, on
every server. A maximum segment size cannot be set on sockets of librdkafka or Java. So the benchmark can move into a
network namespace whose loopback has a smaller MTU. The servers and clients that it starts run there, too. Nothing
outside the namespace changes.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

SEGMENT_BYTES = 8192
_TCP_IP_HEADERS = 40
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_SIOCSIFMTU = 0x8922
_IFF_UP = 1


def enter_own_network() -> bool:
    """Move this process into a network namespace with a loopback of `SEGMENT_BYTES` segments.

    Call it before any thread or child starts. It returns False if the kernel forbids this.
    """
    user, group = os.geteuid(), os.getegid()
    flags = _CLONE_NEWNET if user == 0 else _CLONE_NEWNET | _CLONE_NEWUSER
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        return False
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        name = b"lo".ljust(16, b"\0")
        fcntl.ioctl(control, _SIOCSIFMTU, name + struct.pack("i12x", SEGMENT_BYTES + _TCP_IP_HEADERS))
        request = fcntl.ioctl(control, _SIOCGIFFLAGS, name + bytes(16))
        up = struct.unpack_from("h", request, 16)[0] | _IFF_UP
        fcntl.ioctl(control, _SIOCSIFFLAGS, name + struct.pack("h14x", up))
    return True
