"""A server's CPU for small requests that are pipelined over several connections."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

from testkit.processes import ServerProcess

__all__ = ["pipelined_cpu"]


def pipelined_cpu(
    server: ServerProcess,
    wires: Sequence[socket.socket],
    frames: bytes,
    answer_bytes: int,
    depth: int,
    seconds: float,
) -> float:
    """Return the server's CPU microseconds for each request.

    `frames` are `depth` requests for one connection, and `answer_bytes` is the size of all their answers. The
    first quarter of `seconds` is not measured. The connections are closed at the end.
    """

    def rounds(until: float) -> int:
        count = 0
        while time.perf_counter() < until:
            for wire in wires:
                wire.sendall(frames)
            for wire in wires:
                left = answer_bytes
                while left:
                    left -= len(wire.recv(left))
            count += depth * len(wires)
        return count

    rounds(time.perf_counter() + seconds / 4)
    before = server.cpu_seconds()
    count = rounds(time.perf_counter() + seconds)
    spent = server.cpu_seconds() - before
    for wire in wires:
        wire.close()
    return spent / count * 1e6
