"""The plan of a batch query. The query's bounds are resolved to offsets, compared with the logs, reduced by filters,
and divided into ranges. SHELL.
"""

from __future__ import annotations

import logging

import attrs

from odradek.client.core.partition_offsets import EARLIEST, LATEST
from odradek.spark.reading.cluster_view import ClusterView
from odradek.spark.reading.filters import Pushed
from odradek.spark.reading.offset_ranges import OffsetRange, split
from odradek.spark.reading.read_errors import DataLoss, ReadError
from odradek.spark.source_options import SourceOptions
from odradek.wire.topic_partition import TopicPartition

__all__ = ["plan_batch"]

_LOGGER = logging.getLogger("odradek.spark")


def plan_batch(options: SourceOptions, pushed: Pushed) -> list[OffsetRange]:
    """Plan the ranges that the tasks read; no range is empty.

    Raises:
        OptionError: bounds that do not fit the partitions.
        ReadError: a start after the end, or a missing topic.
        DataLoss: requested offsets are missing, and `failOnDataLoss` is on.
        KafkaError, ClientError: the cluster does not answer.
    """
    view = ClusterView(options)
    try:
        return view.patiently(lambda: _plan(view, options, pushed))
    finally:
        view.close()


def _plan(view: ClusterView, options: SourceOptions, pushed: Pushed) -> list[OffsetRange]:
    known = view.partitions()
    earliest, latest = view.earliest(known), view.latest(known)
    starts = (
        earliest
        if options.starting.everywhere == EARLIEST
        else view.resolve(options.starting, known, is_start=True)
    )
    ends = (
        latest if options.ending.everywhere == LATEST else view.resolve(options.ending, known, is_start=False)
    )
    ranges = []
    for key, partition in known.items():
        start, end = starts[key], ends[key]
        if start > end:
            raise ReadError(
                f"{options.starting.what} of {key} is {start}, which is after {options.ending.what} ({end})"
            )
        begin, behind = _there(options, key, (start, end), (earliest[key], latest[key]))
        ranges.append(OffsetRange(*key, begin, behind, partition.topic_id))
    wanted = _cut(view, pushed, ranges)
    return split(wanted, options.partitions_min, options.records_per_partition_max)


def _there(
    options: SourceOptions, key: TopicPartition, wanted: tuple[int, int], log: tuple[int, int]
) -> tuple[int, int]:
    """Return the part of the wanted offsets that the log still has. If some offsets are missing, log a warning, or
    raise `DataLoss` (`failOnDataLoss`).
    """
    start, end = wanted
    lost = []
    if start < log[0] and start < end:
        lost.append(
            f"offsets {start} to {min(log[0], end) - 1} of {key} do not exist: its log begins at "
            f"offset {log[0]}"
        )
    if end > log[1] and start < end:
        lost.append(
            f"offsets {max(log[1], start)} to {end - 1} of {key} do not exist: its log ends at offset "
            f"{log[1]}"
        )
    for text in lost:
        if options.fail_on_data_loss:
            raise DataLoss(f"{text}; failOnDataLoss=false continues without these records")
        _LOGGER.warning("%s", text)
    begin = min(max(start, log[0]), end)
    return begin, max(min(end, log[1]), begin)


def _cut(view: ClusterView, pushed: Pushed, ranges: list[OffsetRange]) -> list[OffsetRange]:
    """Reduce each range to the part that the filters may select."""
    wanted = [pushed.cut(each) for each in ranges if pushed.wants(each.topic, each.partition)]
    if pushed.since is None:
        return wanted
    keys = [TopicPartition(each.topic, each.partition) for each in wanted if each.size > 0]
    first = view.first_since(keys, pushed.since)
    return [
        attrs.evolve(
            each,
            start=min(
                max(each.start, first.get(TopicPartition(each.topic, each.partition), each.start)), each.end
            ),
        )
        for each in wanted
    ]
