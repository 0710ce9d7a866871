"""The queue of bytes that a connection's socket has not accepted yet. PURE."""

from __future__ import annotations

from collections import deque

__all__ = ["drop_sent"]


def drop_sent(outgoing: deque[memoryview], count: int) -> None:
    """Remove the first `count` bytes from the queue, because the socket has accepted them. If the socket has
    accepted a part of a piece, the rest of the piece stays in the queue.
    """
    while count:
        first = outgoing[0]
        if count < len(first):
            outgoing[0] = first[count:]
            return
        count -= len(first)
        outgoing.popleft()
