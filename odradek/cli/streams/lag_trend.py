"""The trend of a group's lag between two measurements: how fast records are read and written, and when the
lag will be zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from odradek.cli.output import counted, span_text

if TYPE_CHECKING:
    from odradek.client.admin import PartitionLag

__all__ = ["LagTrend", "trend_of", "trend_text"]


class LagTrend(NamedTuple):
    """The change between two measurements of a group's lag. It includes only partitions whose committed
    offset and end offset both measurements know.
    """

    milliseconds: int
    """The time between the measurements."""
    read: int
    """The number of records between the committed offsets of both measurements; below 0 after a reset to
    earlier offsets.
    """
    written: int
    lag: int
    """The number of unread records at the second measurement."""
    zero_in_ms: int | None
    """The time from the second measurement until the lag is zero, at this pace; None if that never happens."""

    def per_second(self, records: int) -> float:
        """Convert a number of records in this span of time to records per second."""
        return records * 1000 / self.milliseconds

    def document(self) -> dict[str, float | None]:
        """Return the fields of the trend for JSON."""
        return {
            "measured_ms": self.milliseconds,
            "read_per_second": round(self.per_second(self.read), 3),
            "written_per_second": round(self.per_second(self.written), 3),
            "lag_change_per_second": round(self.per_second(self.written - self.read), 3),
            "zero_in_ms": self.zero_in_ms,
        }


def trend_of(
    before: Sequence[PartitionLag], after: Sequence[PartitionLag], milliseconds: int
) -> LagTrend | None:
    """Compare two measurements that were made `milliseconds` apart (above 0). Return None if they have no
    known partition in common.
    """
    earlier = {each.key: each for each in before}
    read = written = unread = 0
    zero_in: int | None = 0
    is_known = False
    for each in after:
        old = earlier.get(each.key)
        past, present = None if old is None else _known(old), _known(each)
        if past is None or present is None:
            continue
        is_known = True
        read += present[0] - past[0]
        written += present[1] - past[1]
        lag = max(0, present[1] - present[0])
        unread += lag
        if lag:
            fallen = max(0, past[1] - past[0]) - lag
            if fallen <= 0:
                zero_in = None
            elif zero_in is not None:
                zero_in = max(zero_in, lag * milliseconds // fallen)
    return LagTrend(milliseconds, read, written, unread, zero_in) if is_known else None


def _known(each: PartitionLag) -> tuple[int, int] | None:
    """Return the committed offset and the end offset of a partition, or None if either is unknown."""
    return None if each.committed is None or each.span is None else (each.committed, each.span.end)


def trend_text(trend: LagTrend | None) -> str:
    """Describe a trend in one line for people."""
    if trend is None:
        return "unknown: no partition has a committed offset and an end in both measurements"
    change = trend.written - trend.read
    pace = f"{_pace(trend, trend.read)} read, {_pace(trend, trend.written)} written"
    if not trend.lag:
        return f"no lag; {pace}"
    word = "grows" if change > 0 else "falls" if change < 0 else "stays"
    if trend.zero_in_ms is not None:
        return f"{word}; {pace}; zero in {span_text(trend.zero_in_ms)} at this pace"
    return f"{word}; {pace}; at this pace the lag of some partition never becomes zero"


def _pace(trend: LagTrend, records: int) -> str:
    pace = trend.per_second(records)
    return (
        f"{counted(round(pace), 'record')}/s"
        if pace >= 10 or pace == round(pace)
        else f"{pace:.1f} records/s"
    )
