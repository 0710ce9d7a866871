"""The lag of groups at several moments, so that views can show its trend. SHELL."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from odradek.client.admin import PartitionLag

__all__ = ["LagHistory", "Measured"]

GROUPS_MAX = 200
"""The most groups whose lag is remembered."""
FRESH_SECONDS = 1.0
APART_SECONDS_MIN = 2.0
APART_SECONDS_MAX = 120.0


class Measured(NamedTuple):
    """The lag of a group at one moment. `at` is in seconds of the monotonic clock."""

    at: float
    lags: Sequence[PartitionLag]


class LagHistory:
    """The last measurements of each group that somebody looks at."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._measured: OrderedDict[str, list[Measured]] = OrderedDict()

    def measure(
        self, group: str, ask: Callable[[], Sequence[PartitionLag]]
    ) -> tuple[Measured | None, Measured]:
        """Return an older measurement (None if there is none for a trend) and the present one, which `ask` makes.

        A measurement of the last second is used again.
        """
        with self._lock:
            known = list(self._measured.get(group, ()))
        if not known or time.monotonic() - known[-1].at > FRESH_SECONDS:
            known = [*known[-2:], Measured(time.monotonic(), ask())]
            with self._lock:
                self._measured[group] = known
                self._measured.move_to_end(group)
                if len(self._measured) > GROUPS_MAX:
                    self._measured.popitem(last=False)
        now = known[-1]
        before = [each for each in known if APART_SECONDS_MIN <= now.at - each.at <= APART_SECONDS_MAX]
        return (before[-1] if before else None), now
