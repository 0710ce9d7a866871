"""The bytes of a connection that the socket has not accepted yet. PURE."""

from __future__ import annotations

from collections import deque

__all__ = ["drop_sent"]


def drop_sent(outgoing: deque[memoryview], count: int) -> None:
    """Drop the first `count` bytes, which the socket has accepted. A piece that was accepted in part keeps its
    rest.
    """
    while count:
        first = outgoing[0]
        if count < len(first):
            outgoing[0] = first[count:]
            return
        count -= len(first)
        outgoing.popleft()
