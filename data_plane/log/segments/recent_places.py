"""Remembers the boundaries of the last batches of an active segment. So a read near the segment's end finds
its positions without reading the file. PURE.

Followers and consumers that keep up ask for the offset after a batch that was appended a moment ago. Each of
their reads begins there, and ends at the last boundary within its limit of bytes. Both boundaries are
remembered here. The sparse index knows the positions of some batches only. With the index alone, each such read
would need several small reads of batch headers.

A position is appended before its offset, so a reader in another thread finds a position for every offset.
When the arrays are full, they are replaced as a whole.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

PLACES_MAX = 64
PLACES_KEPT = 32


class RecentPlaces:
    """Successive boundaries between batches, ascending. Boundary i has the offset `offsets[i]` and the
    position `positions[i]` in the file. The first batch with this offset or a higher one begins there.
    """

    __slots__ = ("offsets", "positions")

    def __init__(self, offsets: array[int], positions: array[int]) -> None:
        self.offsets = offsets
        self.positions = positions

    @classmethod
    def beginning(cls, offset: int, position: int) -> RecentPlaces:
        """Make a collection with a single boundary."""
        return cls(array("q", (offset,)), array("q", (position,)))

    def noted(self, offset: int, position: int) -> RecentPlaces:
        """Add the next boundary. Returns the collection to use from now on, which may be a new one."""
        self.positions.append(position)
        self.offsets.append(offset)
        if len(self.offsets) < PLACES_MAX:
            return self
        return RecentPlaces(self.offsets[-PLACES_KEPT:], self.positions[-PLACES_KEPT:])

    def position_of(self, offset: int) -> int:
        """Return the position of the first batch that begins at `offset` or later.

        Returns -1 unless a boundary with exactly this offset is remembered.
        """
        offsets = self.offsets
        at = bisect_left(offsets, offset)
        return self.positions[at] if at < len(offsets) and offsets[at] == offset else -1

    def cut_at(self, start: int, limit: int) -> tuple[int, int] | None:
        """Return (position, offset) of the last boundary with a position in `[start, limit]`. Returns (start,
        -1) if that boundary is at `start` itself. Returns None if no boundary in this range is remembered.
        """
        offsets = self.offsets
        at = bisect_right(self.positions, limit, 0, len(offsets)) - 1
        if at < 0 or self.positions[at] < start:
            return None
        position = self.positions[at]
        return (position, offsets[at]) if position > start else (start, -1)

    def next_after(self, position: int) -> tuple[int, int] | None:
        """Return (position, offset) of the boundary that follows the boundary at `position`. Returns None if
        one of the two is not remembered.
        """
        count = len(self.offsets)
        at = bisect_left(self.positions, position, 0, count)
        if at + 1 >= count or self.positions[at] != position:
            return None
        return self.positions[at + 1], self.offsets[at + 1]
