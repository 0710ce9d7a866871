"""Ranges of offsets: how they are divided among tasks, and how many offsets of a backlog one batch reads. PURE."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import attrs

from odradek.wire.topic_partition import TopicPartition

__all__ = ["BATCH_TASK_RECORDS", "STREAM_TASK_RECORDS", "OffsetRange", "gathered", "rate_limited", "split"]

BATCH_TASK_RECORDS = 25_000
"""The number of offsets up to which `gathered` fills a task of a batch query. A smaller task would take less
time than Spark needs to start it.
"""

STREAM_TASK_RECORDS = 5_000
"""The number of offsets up to which `gathered` fills a task of a micro-batch.

Later releases must not change this number. A stream that restarts plans its last batch again. If the number
of tasks then differs from the recorded number, the exactly-once sink ends the query.
"""


@attrs.frozen
class OffsetRange:
    """The records of a partition from `start` up to but not including `end`. `topic_id` is zero if the broker has
    none.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: bytes

    @property
    def size(self) -> int:
        """The number of offsets in the range. The range may have fewer records than offsets."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} from {self.start} to {self.end}"


def split(
    ranges: Iterable[OffsetRange], partitions_min: int | None = None, records_max: int | None = None
) -> list[OffsetRange]:
    """Divide ranges for the tasks. Each part has 1 to `records_max` offsets. There are at least `partitions_min`
    parts, unless there are fewer offsets than that.

    Without limits there is one part for each partition, as in the JVM connector. With limits, larger ranges are
    divided into more parts.
    """
    whole = [each for each in ranges if each.size > 0]
    parts = [1 if records_max is None else math.ceil(each.size / records_max) for each in whole]
    if partitions_min is not None:
        wanted = min(partitions_min, sum(each.size for each in whole))
        missing = wanted - sum(parts)
        if missing > 0:
            parts = _more_parts([each.size for each in whole], parts, missing)
    return [piece for each, count in zip(whole, parts, strict=True) for piece in _pieces(each, count)]


def _more_parts(sizes: Sequence[int], parts: Sequence[int], missing: int) -> list[int]:
    """Distribute `missing` further parts over the ranges with the largest parts. Return the new number of parts of
    each range.
    """
    count = list(parts)
    total = sum(sizes)
    # Distribute proportional shares at once, and only the remainder one by one, because minPartitions may be large.
    for place, size in enumerate(sizes):
        due = min(size, math.floor((sum(parts) + missing) * size / total))
        more = max(0, min(due - count[place], missing))
        count[place] += more
        missing -= more
    while missing > 0:
        place = max(range(len(sizes)), key=lambda at: sizes[at] / count[at])
        count[place] += 1
        missing -= 1
    return count


def _pieces(whole: OffsetRange, count: int) -> list[OffsetRange]:
    bounds = [whole.start + whole.size * part // count for part in range(count + 1)]
    return [attrs.evolve(whole, start=start, end=end) for start, end in pairwise(bounds)]


def gathered(
    ranges: Sequence[OffsetRange],
    task_records: int,
    tasks_min: int | None = None,
    records_max: int | None = None,
) -> list[tuple[OffsetRange, ...]]:
    """Combine ranges to tasks, so that small ranges share a task. There are at least `tasks_min` tasks, unless there
    are fewer ranges than that.

    Neighbouring ranges are combined until a task has `task_records` offsets. A task has at most `records_max`
    offsets.
    """
    most = task_records if records_max is None else min(task_records, records_max)
    spare = len(ranges) - (tasks_min or 1)
    tasks: list[list[OffsetRange]] = []
    size = 0
    for each in ranges:
        if tasks and spare > 0 and size + each.size <= most:
            tasks[-1].append(each)
            size += each.size
            spare -= 1
        else:
            tasks.append([each])
            size = each.size
    return [tuple(each) for each in tasks]


def rate_limited(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: int
) -> dict[TopicPartition, int]:
    """Compute the end offsets of a batch that reads `limit` offsets from all partitions together. Each partition gets
    a share in proportion to its backlog.

    As in the JVM connector, the share of a small backlog is rounded up to 1, so that each partition makes progress.
    So a batch may exceed the limit by the number of partitions.
    """
    sizes = {key: end - starts[key] for key, end in ends.items() if end > starts[key]}
    total = sum(sizes.values())
    limited = dict(ends)
    for key, size in sizes.items():
        share = limit * size / total
        limited[key] = min(ends[key], starts[key] + (math.ceil(share) if share < 1 else math.floor(share)))
    return limited
