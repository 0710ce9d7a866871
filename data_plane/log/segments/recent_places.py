"""The boundaries of an active segment's last batches, so that reads at its end need not look into the file.
PURE.

Followers and consumers that keep up ask for the offset behind a batch that was appended a moment ago. Each
reads at its own pace, a limited number of bytes at a time. The places here have both the beginning and the
end of such a read. The sparse index has the beginnings of some batches only. With the index alone, every such
read would need several small reads of headers.

A position is appended before its offset, so a reader in another thread finds a position for every offset.
When the arrays are full, they are replaced as a whole.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

PLACES_MAX = 64
PLACES_KEPT = 32


class RecentPlaces:
    """Successive batch boundaries, ascending: the batch that begins at `offsets[i]`, or next after it, begins
    at `positions[i]` of the file.
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
        """Return the position of the batch that begins at `offset` or next after it.

        Returns -1 if no boundary with this offset is remembered.
        """
        offsets = self.offsets
        at = bisect_left(offsets, offset)
        return self.positions[at] if at < len(offsets) and offsets[at] == offset else -1

    def cut_at(self, start: int, limit: int) -> tuple[int, int] | None:
        """Return (position, offset) of the last boundary with a position in `[start, limit]`. Returns (start,
        -1) if `start` is the last, and None if the boundaries are not remembered.
        """
        offsets = self.offsets
        at = bisect_right(self.positions, limit, 0, len(offsets)) - 1
        if at < 0 or self.positions[at] < start:
            return None
        position = self.positions[at]
        return (position, offsets[at]) if position > start else (start, -1)

    def next_after(self, position: int) -> tuple[int, int] | None:
        """Return (position, offset) of the boundary after the one at `position`; None if it is not
        remembered.
        """
        count = len(self.offsets)
        at = bisect_left(self.positions, position, 0, count)
        if at + 1 >= count or self.positions[at] != position:
            return None
        return self.positions[at + 1], self.offsets[at + 1]
