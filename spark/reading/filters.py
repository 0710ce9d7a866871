"""The filters of a batch query on topic, partition, offset and timestamp, with which the query reads fewer records.
PURE.

Filters on topic, partition and offset are applied exactly, so Spark need not apply them again. A lower bound of the
timestamp moves the start to the first record with that time or a later time. Spark applies such a filter again.
Timestamps in a log may decrease, so an upper bound cannot reduce reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from odradek.spark.reading.offset_ranges import OffsetRange

__all__ = ["Pushed", "push"]

_END = 2**63 - 1
_NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})


@attrs.define
class Pushed:
    """The bounds of the records that the filters may select. At first they include everything."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    """The selected partition numbers; None for all."""
    partition_from: int = 0
    partition_to: int = _END
    """The highest selected partition number."""
    offset_from: int = 0
    offset_to: int = _END
    """The highest selected offset."""
    since: int | None = None
    """The lowest selected timestamp, in milliseconds since 1970; None for no bound."""

    def wants(self, topic: str, partition: int) -> bool:
        """True if the filters may select a record of this partition."""
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and self.partition_from <= partition <= self.partition_to
        )

    def cut(self, whole: OffsetRange) -> OffsetRange:
        """Reduce a range to the part that the filters may select. The result may be empty."""
        start = min(max(whole.start, self.offset_from), whole.end)
        end = max(min(whole.end, self.offset_to + 1), start)
        return attrs.evolve(whole, start=start, end=end)


def push(filters: Sequence[Filter]) -> tuple[Pushed, list[Filter]]:
    """Compute the bounds of the records that all filters together may select. Also return the filters that Spark must
    still apply.
    """
    pushed = Pushed()
    left = [each for each in filters if not _take(pushed, each)]
    return pushed, left


def _take(pushed: Pushed, one: Filter) -> bool:
    """Narrow `pushed` by one filter. Return True if the bounds express the filter exactly."""
    if isinstance(one, IsNotNull):
        return len(one.attribute) == 1 and one.attribute[0] in _NEVER_NULL
    if not isinstance(one, (EqualTo, In, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)):
        return False
    column = one.attribute[0] if len(one.attribute) == 1 else ""
    if column == "topic":
        return _take_topic(pushed, one)
    if column == "timestamp":
        _take_timestamp(pushed, one)
        return False
    if column in ("partition", "offset"):
        return _take_number(pushed, column, one)
    return False


def _take_topic(pushed: Pushed, one: Any) -> bool:
    values = _values(one, str)
    if values is None:
        return False
    pushed.topics = frozenset(values) if pushed.topics is None else pushed.topics & frozenset(values)
    return True


def _take_number(pushed: Pushed, column: str, one: Any) -> bool:
    if isinstance(one, In) and column == "partition":
        values = _values(one, int)
        if values is None:
            return False
        pushed.partitions = (
            frozenset(values) if pushed.partitions is None else pushed.partitions & frozenset(values)
        )
        return True
    values = _values(one, int)
    if not values:
        return False
    low, high = min(values), max(values)
    first = low + isinstance(one, GreaterThan)
    last = high - isinstance(one, LessThan)
    if not isinstance(one, (LessThan, LessThanOrEqual)):
        setattr(pushed, f"{column}_from", max(getattr(pushed, f"{column}_from"), first))
    if not isinstance(one, (GreaterThan, GreaterThanOrEqual)):
        setattr(pushed, f"{column}_to", min(getattr(pushed, f"{column}_to"), last))
    # The bounds cannot express an IN list exactly. So read from its least to its greatest value, and let
    # Spark filter again.
    return not isinstance(one, In)


def _take_timestamp(pushed: Pushed, one: Any) -> None:
    if isinstance(one, (LessThan, LessThanOrEqual)):
        return
    values = _values(one, datetime)
    if values:
        since = min(_milliseconds(value) for value in values)
        pushed.since = since if pushed.since is None else max(since, pushed.since)


def _values(one: Any, kind: type) -> list[Any] | None:
    """Return the values that a filter compares with; None if one of these values is not of the type `kind`."""
    values: Iterable[Any] = one.value if isinstance(one, In) else [one.value]
    found = [value for value in values if value is not None]
    return found if all(type(value) is kind or isinstance(value, kind) for value in found) else None


def _milliseconds(time: datetime) -> int:
    """Convert a time to milliseconds since 1970, rounded down. A time without a zone is in UTC."""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
