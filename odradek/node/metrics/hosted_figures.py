"""Figures of all partitions on this broker, counted in one walk with a pause after each slice. PURE.

A page needs a dozen sums over the partitions. One walk over ten thousand partitions takes some milliseconds. So it is a
generator: at each `yield` other tasks may have the event loop. Partitions may come and go meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Sequence
from typing import TypeAlias, TypeVar

import attrs

from odradek.data_plane.broker import Broker
from odradek.data_plane.log.log_types import LogOwner
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.replication.partition import Partition
from odradek.env.ports import DiskError

__all__ = ["HostedFigures", "Slices", "TopicSums", "at_once", "count_hosted"]

SLICE = 500
"""The number of partitions of a slice. It takes less than a millisecond."""

T = TypeVar("T")

Slices: TypeAlias = Generator[None, None, T]
"""Work that pauses after each slice, and returns a value."""


def at_once(work: Slices[T]) -> T:
    """Run work in slices to its end, without pauses."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


@attrs.define
class TopicSums:
    """Sums over the partitions of one topic on this broker."""

    log_bytes: int = 0
    log_start_offsets: int = 0
    high_watermarks: int = 0
    log_end_offsets: int = 0


@attrs.define
class DirectorySums:
    """Sums over the logs of partitions in one directory."""

    logs: int = 0
    log_bytes: int = 0


@attrs.define
class HostedFigures:
    """Counts and sums over the partitions of one broker. The word led stands for partitions that this broker leads."""

    partitions: int = 0
    led: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0
    reassigning: int = 0
    with_open_transaction: int = 0
    stable_lag_max: int = 0
    """The most offsets between the last stable offset and the high watermark of one led partition."""
    topics: dict[str, TopicSums] = attrs.field(factory=dict)
    """Sums by topic, in the order of names."""
    directories: dict[LogOwner | None, DirectorySums] = attrs.field(
        factory=lambda: defaultdict(DirectorySums)
    )
    """Sums by log directory."""


def count_hosted(broker: Broker) -> Slices[HostedFigures]:
    """Count the partitions of a broker, in slices."""
    found = HostedFigures()
    waiting = 0
    for name in sorted(broker.topics):
        hosted = broker.topics.get(name)
        if hosted is None:
            continue
        sums = found.topics[name] = TopicSums()
        partitions = list(hosted.partitions.values())
        for at in range(0, len(partitions), SLICE):
            some = partitions[at : at + SLICE]
            _count(found, sums, some)
            waiting += len(some)
            if waiting >= SLICE:
                waiting = 0
                yield
    yield
    _count_directories(broker, found)
    return found


def _count(found: HostedFigures, sums: TopicSums, partitions: Sequence[Partition]) -> None:
    """Add some partitions of one topic. This loop is written for speed: it uses no property and calls little."""
    directory, owner = DirectorySums(), None
    size = start = watermark = end = led = under_replicated = reassigning = under_min = at_min = 0
    min_isr, config = 1, None
    for partition in partitions:
        log = partition.log
        segments = log.segment_list.segments
        of_log = segments[0].size if len(segments) == 1 else log.size_bytes
        if log.home.owner is not owner:
            owner = log.home.owner
            directory = found.directories[owner]
        directory.logs += 1
        directory.log_bytes += of_log
        size += of_log
        start += log.log_start_offset
        watermark += log.high_watermark
        end += log.log_end_offset
        if not partition.is_leader:
            continue
        led += 1
        if log.config is not config:
            config = log.config
            min_isr = config.min_insync_replicas
        image, replicas = partition.image, 1
        if image is not None:
            replicas = len(image.replicas)
            under_replicated += len(image.isr) < replicas
            if image.adding_replicas or image.removing_replicas:
                reassigning += 1
        under_min += not partition.has_min_isr
        at_min += len(partition.isr_state.isr) == (min_isr if min_isr < replicas else replicas)
        producers = log.producers
        state = producers.state
        if not producers.is_settled if state is None else state.ongoing:
            _count_transactions(found, log)
    found.partitions += len(partitions)
    found.led += led
    found.under_replicated += under_replicated
    found.reassigning += reassigning
    found.under_min_isr += under_min
    found.at_min_isr += at_min
    sums.log_bytes += size
    sums.log_start_offsets += start
    sums.high_watermarks += watermark
    sums.log_end_offsets += end


def _count_transactions(found: HostedFigures, log: PartitionLog) -> None:
    """Add a led partition that may have an open transaction."""
    if log.offline:
        return
    try:
        lag = log.high_watermark - log.last_stable_offset
    except DiskError:
        # Leave out a partition whose directory has failed, because the metrics of the directory show the failure.
        return
    found.stable_lag_max = max(found.stable_lag_max, lag)
    state = log.producers.state
    found.with_open_transaction += bool(state and state.ongoing)


def _count_directories(broker: Broker, found: HostedFigures) -> None:
    """Count the logs of a directory again if it has others than those of partitions, such as deleted ones."""
    for log_dir in broker.log_dirs:
        sums = found.directories[log_dir]
        if sums.logs != len(log_dir.logs):
            sums.log_bytes = log_dir.size_bytes()
