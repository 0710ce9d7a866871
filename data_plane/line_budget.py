"""A limit on similar log lines: the first lines are written, and all further lines are only counted. PURE.

If one request fails, the next requests often fail as well. A client that keeps trying could fill the
operator's disk with lines. At most `LINES_MAX` lines are written in `INTERVAL_SECONDS`. The first line of the
next interval says how many lines were suppressed.
"""

from __future__ import annotations

from odradek.env.ports import Clock

INTERVAL_SECONDS = 10.0
LINES_MAX = 20


class LineBudget:
    """The limit for all log lines of one kind."""

    __slots__ = ("_began", "_clock", "_held_back", "_lines")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._lines = 0
        self._held_back = 0

    def take(self) -> int | None:
        """Count a line that the caller wants to write. If the line may be written, return the number of lines
        that were suppressed since the last written line. Otherwise return None.
        """
        now = self._clock.monotonic()
        if now - self._began >= INTERVAL_SECONDS:
            self._began, self._lines = now, 0
        if self._lines == LINES_MAX:
            self._held_back += 1
            return None
        self._lines += 1
        held_back, self._held_back = self._held_back, 0
        return held_back
