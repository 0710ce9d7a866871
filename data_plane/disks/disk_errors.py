"""Logs requests that fail because of a disk. The first lines are written, further lines are only counted
(`line_budget`). PURE.

The lines are limited because every request to a disk fails while the disk is full, or while the process is
short of descriptors.
"""

from __future__ import annotations

from typing import Any

from odradek.data_plane.line_budget import LineBudget
from odradek.env.ports import Clock, Log


class DiskErrors:
    """Writes the log lines about disk errors, for all requests of a broker."""

    __slots__ = ("_budget", "_log", "errors")

    def __init__(self, clock: Clock, log: Log) -> None:
        self._budget = LineBudget(clock)
        self._log = log
        self.errors = 0

    def note(self, event: str, **fields: Any) -> None:
        """Log that a request was answered with KAFKA_STORAGE_ERROR; `fields` name the request and the reason.
        Lines beyond the limit are only counted.
        """
        self.errors += 1
        held_back = self._budget.take()
        if held_back is not None:
            self._log.error(event, **fields, held_back=held_back)
