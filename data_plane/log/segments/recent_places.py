"""The boundaries of an active segment's last batches, so that reads at its tail need no look into the file. PURE.

Followers and consumers that keep up ask for the offset behind a batch that was appended a moment ago. Each has its
own pace, and asks for a bounded number of bytes. The places here have both the beginning and the end of such a
read. The sparse index has the beginnings of some batches only. With the index alone, every such read would need
several small reads of headers.

A position is appended before its offset, so a reader in another thread finds a position for every offset. When the
arrays are full, they are replaced as a whole.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

PLACES_MAX = 64
PLACES_KEPT = 32


class RecentPlaces:
    """Neighbouring batch boundaries, ascending: the batch that holds `offsets[i]` or follows it begins at `positions[i]`."""

    __slots__ = ("offsets", "positions")

    def __init__(self, offsets: array[int], positions: array[int]) -> None:
        self.offsets = offsets
        self.positions = positions

    @classmethod
    def beginning(cls, offset: int, position: int) -> RecentPlaces:
        """Make places with one boundary."""
        return cls(array("q", (offset,)), array("q", (position,)))

    def noted(self, offset: int, position: int) -> RecentPlaces:
        """Return the places with the next boundary added; the caller must use the result from now on."""
        self.positions.append(position)
        self.offsets.append(offset)
        if len(self.offsets) < PLACES_MAX:
            return self
        return RecentPlaces(self.offsets[-PLACES_KEPT:], self.positions[-PLACES_KEPT:])

    def position_of(self, offset: int) -> int:
        """Find the position of the batch that begins at `offset` or next after it.

        Returns -1 if `offset` is no boundary known here.
        """
        offsets = self.offsets
        at = bisect_left(offsets, offset)
        return self.positions[at] if at < len(offsets) and offsets[at] == offset else -1

    def cut_at(self, start: int, limit: int) -> tuple[int, int] | None:
        """Find (position, offset) of the last boundary in `[start, limit]`. Returns (start, -1) if that is `start`,
        and None if it is not known.
        """
        offsets = self.offsets
        at = bisect_right(self.positions, limit, 0, len(offsets)) - 1
        if at < 0 or self.positions[at] < start:
            return None
        position = self.positions[at]
        return (position, offsets[at]) if position > start else (start, -1)

    def next_after(self, position: int) -> tuple[int, int] | None:
        """Find (position, offset) of the boundary after the one at `position`; None if it is not known."""
        count = len(self.offsets)
        at = bisect_left(self.positions, position, 0, count)
        if at + 1 >= count or self.positions[at] != position:
            return None
        return self.positions[at + 1], self.offsets[at + 1]
