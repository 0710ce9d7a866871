"""Log lines about disks that refuse requests: some at once, the others counted. PURE.

While a disk is full, or the process is short of descriptors, every request to it fails, and each would write a line. There are
at most `LINES_MAX` lines in `INTERVAL_SECONDS`; the next one then says how many were held back.
"""

from __future__ import annotations

from typing import Any

from odradek.env.ports import Clock

INTERVAL_SECONDS = 10.0
LINES_MAX = 20


class DiskErrors:
    """One for all requests of a broker."""

    __slots__ = ("_began", "_clock", "_held_back", "_lines", "_log", "errors")

    def __init__(self, clock: Clock, log: Any) -> None:
        self._clock = clock
        self._log = log
        self._began = clock.monotonic()
        self._lines = 0
        self._held_back = 0
        self.errors = 0

    def tell(self, event: str, **fields: Any) -> None:
        """A request was answered with KAFKA_STORAGE_ERROR; `fields` say which and why."""
        self.errors += 1
        now = self._clock.monotonic()
        if now - self._began >= INTERVAL_SECONDS:
            self._began, self._lines = now, 0
        if self._lines == LINES_MAX:
            self._held_back += 1
            return
        self._lines += 1
        held_back, self._held_back = self._held_back, 0
        self._log.error(event, **fields, held_back=held_back)
