"""Find records by timestamp: all of it blocks and runs in workers. No record is made; a batch is read up to the first match."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import attrs

from data_plane.log.log_config import LogConfig
from data_plane.log.parts.log_offsets import LogOffsets
from data_plane.log.parts.segment_list import SegmentList
from data_plane.log.record_rules import RECORDS_PARSED_MAX
from data_plane.log.segments.scan import SegmentScan
from data_plane.log.segments.segment import Segment
from odradek.env.ports import FileClosed
from wire.batches.batch_errors import CorruptBatch
from wire.batches.batch_header import BatchHeader
from wire.batches.record_times import record_times

T = TypeVar("T")


@attrs.frozen
class TimeLookup:
    """The parts of a log that a lookup reads, while the loop may change them."""

    offsets: LogOffsets
    segments: SegmentList
    config: LogConfig

    def offset_for_timestamp(self, timestamp_ms: int, upper_bound: int) -> tuple[int, int, int] | None:
        """See `PartitionLog.offset_for_timestamp`."""
        return self._with_its_segments(lambda: self._offset_for_timestamp(timestamp_ms, upper_bound))

    def offset_of_max_timestamp(self, upper_bound: int) -> tuple[int, int, int] | None:
        """See `PartitionLog.offset_of_max_timestamp`."""
        return self._with_its_segments(lambda: self._offset_of_max_timestamp(upper_bound))

    def _with_its_segments(self, look: Callable[[], T]) -> T:
        """Look once more whenever the loop has removed segments meanwhile. Raises `FileClosed` once the log is closed."""
        while True:
            listed = self.segments.segments
            try:
                return look()
            except FileClosed:
                if self.segments.home.is_closed or self.segments.segments is listed:
                    raise

    def _offset_for_timestamp(self, timestamp_ms: int, upper_bound: int) -> tuple[int, int, int] | None:
        start_offset = self.offsets.log_start_offset
        interval = self.config.index_interval_bytes
        segments = self.segments.segments
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
            for header, found in self._batches(segment, position, timestamp_ms):
                if header.base_offset >= upper_bound:
                    return None
                for offset, timestamp in found:
                    if timestamp >= timestamp_ms and start_offset <= offset < upper_bound:
                        return timestamp, offset, header.partition_leader_epoch
        return None

    def _offset_of_max_timestamp(self, upper_bound: int) -> tuple[int, int, int] | None:
        interval = self.config.index_interval_bytes
        segments = self.segments.segments
        best: Segment | None = None
        newest = -1
        for at, segment in enumerate(segments):
            if segment.base_offset >= upper_bound:
                break
            is_last = at + 1 == len(segments)
            end_offset = self.offsets.log_end_offset if is_last else segments[at + 1].base_offset
            if end_offset <= upper_bound:
                candidate = segment.newest_timestamp_ms(interval)
            else:
                candidate = _newest_below(segment, upper_bound)
            if candidate > newest:
                best, newest = segment, candidate
        if best is None:
            return None
        for header, found in self._batches(best, 0, newest):
            for offset, timestamp in found:
                if timestamp == newest and offset < upper_bound:
                    return timestamp, offset, header.partition_leader_epoch
        return None

    def _batches(
        self, segment: Segment, position: int, timestamp_ms: int
    ) -> Iterator[tuple[BatchHeader, Iterator[tuple[int, int]]]]:
        """The batches from `position` on whose newest record is not older than `timestamp_ms`: offsets and timestamps.

        Raises:
            CorruptBatch: there are no batches where the index says.
            InvalidRecord: a batch has more records than may be gone through for one answer.
        """
        file = segment.pinned_file()
        try:
            scan = SegmentScan(file, position, segment.size, segment.base_offset)
            for at, header in scan:
                if header.max_timestamp >= timestamp_ms:
                    batch = file.pread(header.size, at)
                    yield (
                        header,
                        record_times(
                            batch,
                            records_max=RECORDS_PARSED_MAX,
                            decompressed_bytes_max=self.config.decompressed_bytes_max,
                        ),
                    )
            if scan.damage is not None:
                raise CorruptBatch(f"{file.path} at {scan.position}: {scan.damage}")
        finally:
            file.unpin()


def _newest_below(segment: Segment, upper_bound: int) -> int:
    newest = -1
    file = segment.pinned_file()
    try:
        for _, header in SegmentScan(file, 0, segment.size, segment.base_offset):
            if header.last_offset >= upper_bound:
                break
            newest = max(newest, header.max_timestamp)
    finally:
        file.unpin()
    return newest
