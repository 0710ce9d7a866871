"""A budget of log lines: the first ones are written, the rest are counted. PURE.

If one request fails, the next often fail as well. A client that keeps trying could fill the operator's disk with
lines. There are at most `LINES_MAX` lines in `INTERVAL_SECONDS`; the next one then says how many were held back.
"""

from __future__ import annotations

from odradek.env.ports import Clock

INTERVAL_SECONDS = 10.0
LINES_MAX = 20


class LineBudget:
    """One budget for all lines of a kind."""

    __slots__ = ("_began", "_clock", "_held_back", "_lines")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._lines = 0
        self._held_back = 0

    def take(self) -> int | None:
        """Return how many lines were held back since the last written line; None if this line is held back, too."""
        now = self._clock.monotonic()
        if now - self._began >= INTERVAL_SECONDS:
            self._began, self._lines = now, 0
        if self._lines == LINES_MAX:
            self._held_back += 1
            return None
        self._lines += 1
        held_back, self._held_back = self._held_back, 0
        return held_back
