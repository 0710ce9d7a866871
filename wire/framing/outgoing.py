"""The bytes of a connection that a socket has still to take. PURE."""

from __future__ import annotations

from collections import deque

__all__ = ["drop_sent"]


def drop_sent(outgoing: deque[memoryview], count: int) -> None:
    """Drop the first `count` bytes, which the socket took. A piece that was taken in part keeps its rest."""
    while count:
        first = outgoing[0]
        if count < len(first):
            outgoing[0] = first[count:]
            return
        count -= len(first)
        outgoing.popleft()
