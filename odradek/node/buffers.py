"""Memory for frames that arrive in pieces: one shared buffer for all connections, pooled ones for what is left over.

A connection receives into the shared buffer, dispatches every complete frame out of it, and copies only an
incomplete tail into a buffer of its own. Those grow with what has arrived, never with what a frame announces, and
all of them together stay below `bytes_max`: a connection that needs more waits, and if nobody gives anything back
the stalest holder is closed (`evict`), so that half-sent frames cannot hold a node's memory.
"""

from __future__ import annotations

from collections import deque

from odradek.env.ports import Event

SHARED_BYTES = 256 * 1024
SMALLEST_BYTES = 1024
KEPT_BYTES_MIN = 4096
KEEP_FREE_BYTES = 16 * 1024 * 1024


class PooledBuffer:
    """A buffer and its view, made together because both are needed for every receive."""

    __slots__ = ("data", "size", "view")

    def __init__(self, size: int) -> None:
        self.size = size
        self.data = bytearray(size)
        self.view = memoryview(self.data)


class ReceiveBuffers:
    """The shared buffer and the pool. Sizes are powers of two; freed ones are kept for the next, up to `KEEP_FREE_BYTES`."""

    def __init__(self, bytes_max: int) -> None:
        self.shared = PooledBuffer(SHARED_BYTES)
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self._free: dict[int, list[PooledBuffer]] = {}
        self._free_bytes = 0
        self._waiters: deque[Event] = deque()

    def take(self, size: int, replacing: int = 0) -> PooledBuffer | None:
        """A buffer of at least `size` bytes, or None when the pool's limit is reached.

        Who is alone gets one beyond the limit, also while still holding the `replacing` bytes of a smaller one.
        """
        rounded = max(SMALLEST_BYTES, 1 << (size - 1).bit_length())
        if self.bytes_used + rounded > self.bytes_max and self.bytes_used > replacing:
            return None
        self.bytes_used += rounded
        free = self._free.get(rounded)
        if free:
            self._free_bytes -= rounded
            return free.pop()
        return PooledBuffer(rounded)

    def take_beyond(self, size: int) -> PooledBuffer:
        """A buffer for a tail that has arrived already (at most the shared buffer's size), limit or not."""
        rounded = max(SMALLEST_BYTES, 1 << (size - 1).bit_length())
        self.bytes_used += rounded
        return PooledBuffer(rounded)

    def give(self, buffer: PooledBuffer) -> None:
        """Give a buffer back and let those who wait try again (all: the first may want more than there is)."""
        self.bytes_used -= buffer.size
        if buffer.size >= KEPT_BYTES_MIN and self._free_bytes + buffer.size <= KEEP_FREE_BYTES:
            self._free.setdefault(buffer.size, []).append(buffer)
            self._free_bytes += buffer.size
        while self._waiters:
            self._waiters.popleft().set()

    async def wait_for_room(self, event: Event) -> None:
        """Wait until some buffer came back, which may be too small (call `take` again), or the caller sets `event`."""
        self._waiters.append(event)
        try:
            await event.wait()
        finally:
            if event in self._waiters:
                self._waiters.remove(event)

    @property
    def contended(self) -> bool:
        """Whether somebody waits for memory."""
        return bool(self._waiters)

    def trim(self) -> None:
        """Let go of freed buffers that a burst left behind."""
        self._free.clear()
        self._free_bytes = 0

    def statistics(self) -> dict[str, int]:
        """Bytes held by connections, bytes kept free, connections waiting."""
        return {
            "bytes_used": self.bytes_used,
            "bytes_free": self._free_bytes,
            "waiting": len(self._waiters),
        }
