"""The end of a partition at a few moments of the past, to estimate when a record was written. PURE.

Between two moments the end is taken to have grown evenly. The times of records would be exact. But to read them takes the
disk, and a partition may be on another broker.
"""

from __future__ import annotations

__all__ = ["EndHistory"]

MOMENTS_MAX = 16
"""The most moments that are kept. Recent ones lie closer together, as every second one of the older half is dropped."""


class EndHistory:
    """The ends of one partition, ascending, each with the first and the last moment at which it was seen."""

    __slots__ = ("_ends", "_firsts", "_lasts")

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._firsts: list[float] = []
        self._lasts: list[float] = []

    def __len__(self) -> int:
        return len(self._ends)

    def note(self, now: float, end: int) -> None:
        """Add the end at this moment. A lower end (after a truncation, or of a topic made anew) begins the history
        anew.
        """
        ends, firsts, lasts = self._ends, self._firsts, self._lasts
        if ends and ends[-1] == end:
            lasts[-1] = now
            return
        if ends and end < ends[-1]:
            del ends[:], firsts[:], lasts[:]
        elif len(ends) == MOMENTS_MAX:
            older = slice(1, MOMENTS_MAX // 2, 2)
            del ends[older], firsts[older], lasts[older]
        ends.append(end)
        firsts.append(now)
        lasts.append(now)

    def written_at(self, offset: int) -> float | None:
        """Estimate when the record at this offset was written; None if it is not written yet. For a record that is older
        than the history, return the first moment, which is too late.
        """
        ends = self._ends
        if not ends or offset >= ends[-1]:
            return None
        after = len(ends) - 1
        while after > 0 and ends[after - 1] > offset:
            after -= 1
        if after == 0:
            return self._firsts[0]
        share = (offset - ends[after - 1]) / (ends[after] - ends[after - 1])
        before = self._lasts[after - 1]
        return before + share * (self._firsts[after] - before)
