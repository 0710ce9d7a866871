"""Decisions about running queries: when a failed query starts again, and when its lag is an alert. PURE.

A query that fails starts again after a time that doubles with each failure. A batch that it has finished since then begins
the count anew. After too many failures without a finished batch it stays down. After an error that no restart can mend, it does so at
once.

A lag is an alert if it has been above its limit for some time. The alert ends when the lag is at half of the limit or
below. So a lag near the limit gives one alert.
"""

from __future__ import annotations

import re

import attrs

__all__ = ["LagLimits", "LagWatch", "RestartLimits", "Restarts", "is_hopeless"]

_HOPELESS = re.compile(
    r"\[(STATE_STORE_\w*SCHEMA\w*|STATE_STORE_\w*NOT_COMPATIBLE|STREAMING_STATEFUL_OPERATOR_\w+|"
    r"UNRESOLVED_COLUMN\w*|STATEFUL_PROCESSOR_\w+)[.\w]*\]"
)


def is_hopeless(error: str) -> bool:
    """True if this error of a query comes again at each start, since the code and the checkpoint do not match."""
    return _HOPELESS.search(error) is not None


@attrs.frozen
class RestartLimits:
    """The limits of restarts."""

    first_seconds: float = 1.0
    """The time before the first restart. It doubles with each failure."""
    seconds_max: float = 60.0
    failures_max: int = 5
    """The number of failures without a finished batch after which a query stays down."""


@attrs.frozen
class Restarts:
    """The facts about a query's failures: their number since its last finished batch, and that batch."""

    failures: int = 0
    batch: int = -1

    def failed(self, batch: int) -> Restarts:
        """Return the state after one more failure, with the number of the last finished batch (-1 for none)."""
        return Restarts(1 if batch > self.batch else self.failures + 1, batch)

    def wait_seconds(self, limits: RestartLimits) -> float | None:
        """Return the time before the next start; None if the query stays down."""
        if self.failures >= limits.failures_max:
            return None
        doubled: float = limits.first_seconds * 2 ** max(0, self.failures - 1)
        return min(doubled, limits.seconds_max)


@attrs.frozen
class LagLimits:
    """The limits of a query's lag."""

    records: int
    seconds: float = 60.0
    """How long the lag has to be above `records` before it is an alert."""


@attrs.frozen
class LagWatch:
    """The facts about a query's lag: since when it is too high, and whether there is an alert."""

    since: float | None = None
    is_alert: bool = False

    def seen(self, records: int, now: float, limits: LagLimits) -> LagWatch:
        """Return the state after a lag was seen at the time `now`, in seconds."""
        if self.is_alert:
            return self if records > limits.records // 2 else LagWatch()
        if records <= limits.records:
            return LagWatch()
        since = now if self.since is None else self.since
        return LagWatch(since, now - since >= limits.seconds)
