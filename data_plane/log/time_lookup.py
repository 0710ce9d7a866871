"""Find records by timestamp: all of it blocks and runs in workers. No record is made; a batch is read up to the first match."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from data_plane.log.record_rules import RECORDS_PARSED_MAX
from data_plane.log.segments.scan import HeaderTuple, SegmentScan
from data_plane.log.segments.segment import Segment
from odradek.env.ports import FileClosed
from wire.batches.record_times import record_times
from wire.record_batch import SIZE_PREFIX, CorruptBatch

if TYPE_CHECKING:
    from data_plane.log.partition_log import PartitionLog
    from odradek.env.ports import File

T = TypeVar("T")


def offset_for_timestamp(
    log: PartitionLog, timestamp_ms: int, upper_bound: int
) -> tuple[int, int, int] | None:
    """See `PartitionLog.offset_for_timestamp`."""
    return _with_its_segments(log, lambda: _offset_for_timestamp(log, timestamp_ms, upper_bound))


def offset_of_max_timestamp(log: PartitionLog, upper_bound: int) -> tuple[int, int, int] | None:
    """See `PartitionLog.offset_of_max_timestamp`."""
    return _with_its_segments(log, lambda: _offset_of_max_timestamp(log, upper_bound))


def _with_its_segments(log: PartitionLog, look: Callable[[], T]) -> T:
    """Look once more whenever the loop has removed segments meanwhile. Raises `FileClosed` once the log is closed."""
    while True:
        segments = log.segments
        try:
            return look()
        except FileClosed:
            if log.is_closed or log.segments is segments:
                raise


def _offset_for_timestamp(
    log: PartitionLog, timestamp_ms: int, upper_bound: int
) -> tuple[int, int, int] | None:
    start_offset = log.log_start_offset
    interval = log.config.index_interval_bytes
    segments = log.segments
    for at, segment in enumerate(segments):
        if segment.base_offset >= upper_bound:
            return None
        if at + 1 < len(segments) and segments[at + 1].base_offset <= start_offset:
            continue
        if segment.newest_timestamp_ms(interval) < timestamp_ms:
            continue
        index = segment.load_index(interval)
        known = index.offset_for_timestamp(timestamp_ms)
        _, position = index.position_for_offset(max(known, start_offset - segment.base_offset))
        for header, found in _batches(log, segment, position, timestamp_ms):
            if header[0] >= upper_bound:
                return None
            for offset, timestamp in found:
                if timestamp >= timestamp_ms and start_offset <= offset < upper_bound:
                    return timestamp, offset, header[2]
    return None


def _offset_of_max_timestamp(log: PartitionLog, upper_bound: int) -> tuple[int, int, int] | None:
    interval = log.config.index_interval_bytes
    segments = log.segments
    best: Segment | None = None
    newest = -1
    for at, segment in enumerate(segments):
        if segment.base_offset >= upper_bound:
            break
        end_offset = segments[at + 1].base_offset if at + 1 < len(segments) else log.log_end_offset
        if end_offset <= upper_bound:
            candidate = segment.newest_timestamp_ms(interval)
        else:
            candidate = _newest_below(segment, upper_bound)
        if candidate > newest:
            best, newest = segment, candidate
    if best is None:
        return None
    for header, found in _batches(log, best, 0, newest):
        for offset, timestamp in found:
            if timestamp == newest and offset < upper_bound:
                return timestamp, offset, header[2]
    return None


def _newest_below(segment: Segment, upper_bound: int) -> int:
    newest = -1
    file = segment.pinned_file()
    try:
        for _, header in SegmentScan(file, 0, segment.size, segment.base_offset):
            if header[0] + header[6] >= upper_bound:
                break
            newest = max(newest, header[8])
    finally:
        file.unpin()
    return newest


def _batches(
    log: PartitionLog, segment: Segment, position: int, timestamp_ms: int
) -> Iterator[tuple[HeaderTuple, Iterator[tuple[int, int]]]]:
    """The batches from `position` on whose newest record is not older than `timestamp_ms`: offsets and timestamps.

    Raises:
        CorruptBatch: there are no batches where the index says.
        InvalidRecord: a batch has more records than may be gone through for one answer.
    """
    file: File = segment.pinned_file()
    try:
        scan = SegmentScan(file, position, segment.size, segment.base_offset)
        for at, header in scan:
            if header[8] >= timestamp_ms:
                batch = file.pread(header[1] + SIZE_PREFIX, at)
                yield (
                    header,
                    record_times(
                        batch,
                        records_max=RECORDS_PARSED_MAX,
                        decompressed_bytes_max=log.config.decompressed_bytes_max,
                    ),
                )
        if scan.damage is not None:
            raise CorruptBatch(f"{file.path} at {scan.position}: {scan.damage}")
    finally:
        file.unpin()
