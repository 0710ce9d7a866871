"""Memory for received frames: one shared buffer, a pool for incomplete frames, and the connections to close
when the pool is used up.

A connection receives into the shared buffer and dispatches every complete frame from there. Only an incomplete tail
is copied into a buffer of its own. That buffer grows with the bytes that have arrived, never with the size that a
frame announces.

All pooled buffers together stay below `bytes_max`. A connection that needs more has to wait, by these rules:

* A quarter of the pool is only for small frames, up to `SMALL_FRAME_BYTES`. Small frames may also use the
  rest of the pool while no larger frame waits for it. So large frames that stay incomplete delay only other
  large frames.
* Each part serves waiting connections strictly in the order in which they came.
* While a connection waits, or the pool is full, a receive takes at most `SCANT_BYTES`, because the incomplete
  tail needs a buffer in any case.
* If a connection has waited for `WAIT_SECONDS_MAX`, other connections are closed to free memory (`to_evict`).
  The address that holds the most bytes loses a connection first, namely its slowest one. The speed is
  measured in bytes per second since the frame began, without the time in which the frame waited for memory.
  Each second, one connection is closed, together with all slow connections (below `BYTES_PER_SECOND_MIN`)
  whose memory is needed. After twice that wait, all connections whose memory is needed are closed. So a
  half-sent frame delays others for only a few seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from odradek.env.ports import Event

SHARED_BYTES = 256 * 1024
SCANT_BYTES = 16 * 1024
SMALLEST_BYTES = 1024
KEPT_BYTES_MIN = 4096
KEEP_FREE_BYTES = 16 * 1024 * 1024
SMALL_FRAME_BYTES = 2 * 1024 * 1024
SMALL_SHARE = 4
"""1 / `SMALL_SHARE` of the pool's bytes is reserved for small frames."""
WAIT_SECONDS_MAX = 5.0
BYTES_PER_SECOND_MIN = 64 * 1024
EVICTED_AT_ONCE_MAX = 100


class Holder(Protocol):
    """A connection that holds a buffer of the pool while a frame arrives."""

    have: int
    """The number of bytes of the incomplete frame that have arrived."""
    frame_began_at: float
    """The time at which the frame began, plus the time for which it waited for memory."""
    closing: bool

    @property
    def address(self) -> str: ...

    def close(self) -> None: ...


class PooledBuffer:
    """A buffer and a memory view of it, made together because every receive needs both."""

    __slots__ = ("data", "holder", "is_small", "size", "view", "waited_since")

    def __init__(self, size: int) -> None:
        self.size = size
        self.data = bytearray(size)
        self.view = memoryview(self.data)
        self.is_small = True
        self.holder: Holder | None = None
        self.waited_since: float | None = None
        """The time at which its holder first waited for a larger buffer."""


class _Waiter:
    """A connection that waits for a larger buffer than it has."""

    __slots__ = ("buffer", "event", "replaced", "since", "size")

    def __init__(self, size: int, replaced: PooledBuffer, event: Event, since: float) -> None:
        self.size = size
        self.replaced = replaced
        self.event = event
        self.since = since
        self.buffer: PooledBuffer | None = None


class ReceiveBuffers:
    """The shared buffer and the pool. Buffer sizes are powers of two. Freed buffers are kept for reuse, up to
    `KEEP_FREE_BYTES`.
    """

    def __init__(self, bytes_max: int) -> None:
        self.shared = PooledBuffer(SHARED_BYTES)
        self.receive_view = self.shared.view
        """The part of the shared buffer into which a connection may receive now."""
        self._scant_view = self.shared.view[:SCANT_BYTES]
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self._used = [0, 0]
        """The bytes in use: first for large frames, then for small frames."""
        small = bytes_max // SMALL_SHARE
        self._parts = (bytes_max - small, small)
        self._waiters: tuple[deque[_Waiter], deque[_Waiter]] = (deque(), deque())
        self._in_use: dict[PooledBuffer, None] = {}
        self._free: dict[int, list[PooledBuffer]] = {}
        self._free_bytes = 0
        self._evicted = 0
        self._look_at = 0.0

    # -- taking and giving ----------------------------------------------------------------------------------------

    def take(
        self, size: int, frame_bytes: int, holder: Holder, replaced: PooledBuffer | None = None
    ) -> PooledBuffer | None:
        """Return a buffer of at least `size` bytes for a frame of `frame_bytes`; None if there is no room now.

        If no other connection uses the same part of the pool, the buffer may exceed the limit. The connection's present
        buffer `replaced` is not counted, because the new buffer takes its place.
        """
        is_small = frame_bytes <= SMALL_FRAME_BYTES
        rounded = _rounded(size)
        if self._waiters[is_small] or not self._fits(rounded, is_small, replaced):
            return None
        return self._make(rounded, is_small, holder)

    def take_beyond(self, size: int, frame_bytes: int, holder: Holder) -> PooledBuffer:
        """Return a buffer for a tail that has arrived already (at most `receive_view`). It may exceed the limit."""
        return self._make(_rounded(size), frame_bytes <= SMALL_FRAME_BYTES, holder)

    async def wait_for(
        self, size: int, frame_bytes: int, replaced: PooledBuffer, event: Event, now: float
    ) -> PooledBuffer | None:
        """Wait for this connection's turn and return a buffer; return None if the caller sets `event` before
        that turn. `now` is in monotonic seconds.
        """
        is_small = frame_bytes <= SMALL_FRAME_BYTES
        if replaced.waited_since is None:
            replaced.waited_since = now
        waiter = _Waiter(_rounded(size), replaced, event, replaced.waited_since)
        queue = self._waiters[is_small]
        queue.append(waiter)
        self._look_for_room()
        try:
            await event.wait()
        except BaseException:
            if waiter.buffer is not None:
                self.give(waiter.buffer)
            raise
        finally:
            if waiter.buffer is None:
                queue.remove(waiter)
                self._look_for_room()
        return waiter.buffer

    def give(self, buffer: PooledBuffer) -> None:
        """Return a buffer to the pool, and serve waiting connections in their order."""
        self.bytes_used -= buffer.size
        self._used[buffer.is_small] -= buffer.size
        del self._in_use[buffer]
        buffer.holder = None
        if buffer.size >= KEPT_BYTES_MIN and self._free_bytes + buffer.size <= KEEP_FREE_BYTES:
            self._free.setdefault(buffer.size, []).append(buffer)
            self._free_bytes += buffer.size
        self._look_for_room()

    def _fits(self, size: int, is_small: bool, replaced: PooledBuffer | None) -> bool:
        own, total = self._used[is_small] + size, self.bytes_used + size
        if own - size == (replaced.size if replaced is not None and replaced.is_small is is_small else 0):
            return True
        if own <= self._parts[is_small]:
            return is_small or total <= self.bytes_max
        return is_small and not self._waiters[False] and total <= self.bytes_max

    def _make(self, size: int, is_small: bool, holder: Holder) -> PooledBuffer:
        self.bytes_used += size
        self._used[is_small] += size
        free = self._free.get(size)
        if free:
            self._free_bytes -= size
            buffer = free.pop()
        else:
            buffer = PooledBuffer(size)
        buffer.is_small = is_small
        buffer.holder = holder
        buffer.waited_since = None
        self._in_use[buffer] = None
        if self.bytes_used >= self.bytes_max:
            self.receive_view = self._scant_view
        return buffer

    def _look_for_room(self) -> None:
        """Give buffers to waiting connections in their order, as far as there is room. Then set how much one receive
        may take.
        """
        for is_small in (True, False):
            queue = self._waiters[is_small]
            while queue and self._fits(queue[0].size, is_small, queue[0].replaced):
                waiter = queue.popleft()
                assert waiter.replaced.holder is not None, (
                    "a connection that waits for a buffer must hold the buffer to be replaced"
                )
                waiter.buffer = self._make(waiter.size, is_small, waiter.replaced.holder)
                waiter.buffer.waited_since = waiter.since
                waiter.event.set()
        scant = self.contended or self.bytes_used >= self.bytes_max
        self.receive_view = self._scant_view if scant else self.shared.view

    # -- when there is too little ---------------------------------------------------------------------------------

    @property
    def contended(self) -> bool:
        """True if a connection waits for memory."""
        return bool(self._waiters[0] or self._waiters[1])

    def to_evict(self, now: float) -> list[Holder]:
        """Choose connections to close, so that others get memory. The server calls this about every second."""
        if now < self._look_at:
            return []
        self._look_at = now + 0.5
        chosen: list[Holder] = []
        for is_small in (True, False):
            queue = self._waiters[is_small]
            late = [each for each in queue if now - each.since > WAIT_SECONDS_MAX]
            wanted = total = sum(each.size for each in late)
            is_urgent = any(now - each.since > 2 * WAIT_SECONDS_MAX for each in late)
            for buffer, is_slow in self._by_share(is_small, now, chosen) if late else ():
                if wanted <= 0 or (wanted < total and not is_slow and not is_urgent):
                    break
                assert buffer.holder is not None, "a connection must hold the buffer that it uses"
                chosen.append(buffer.holder)
                wanted -= buffer.size + sum(each.size for each in late if each.replaced is buffer)
        self._evicted += len(chosen)
        return chosen

    def _by_share(
        self, is_small: bool, now: float, chosen: list[Holder]
    ) -> Iterator[tuple[PooledBuffer, bool]]:
        """Yield buffers whose release gives room to waiting connections of this part of the pool. With each
        buffer, yield whether its connection is slow.

        Each time, the next buffer comes from the address whose remaining buffers have the most bytes. Of this
        address, connections that do not wait come first, in the order of their bytes per second, the slowest
        first. Connections that wait come after them, the larger and older ones first.
        """
        both = self._used[not is_small] > self._parts[not is_small]
        waiting = {each.replaced for queue in self._waiters for each in queue}
        shares: dict[str, int] = {}
        by_address: dict[str, list[tuple[bool, float, float, int, PooledBuffer]]] = {}
        for number, buffer in enumerate(self._in_use):
            holder = buffer.holder
            assert holder is not None, "a connection must hold the buffer that it uses"
            if (both or buffer.is_small is is_small) and not holder.closing and holder not in chosen:
                if buffer in waiting:
                    order = (True, float(-buffer.size), holder.frame_began_at)
                else:
                    order = (False, holder.have / max(0.001, now - holder.frame_began_at), 0.0)
                shares[holder.address] = shares.get(holder.address, 0) + buffer.size
                by_address.setdefault(holder.address, []).append((*order, number, buffer))
        for frames in by_address.values():
            frames.sort(reverse=True)
        for _ in range(EVICTED_AT_ONCE_MAX):
            if not shares:
                return
            address = max(shares, key=shares.__getitem__)
            waits, rate, _, _, buffer = by_address[address].pop()
            shares[address] -= buffer.size
            if not by_address[address]:
                del shares[address]
            yield buffer, not waits and rate < BYTES_PER_SECOND_MIN

    def trim(self) -> None:
        """Release the free buffers, which a burst of traffic may have left."""
        self._free.clear()
        self._free_bytes = 0

    def statistics(self) -> dict[str, int]:
        """Return figures: bytes held by connections, bytes kept for reuse, connections that wait, connections closed
        to give others memory.
        """
        return {
            "bytes_used": self.bytes_used,
            "bytes_free": self._free_bytes,
            "waiting": sum(map(len, self._waiters)),
            "evicted": self._evicted,
        }


def _rounded(size: int) -> int:
    return max(SMALLEST_BYTES, 1 << (size - 1).bit_length())
