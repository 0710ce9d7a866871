"""Find records by timestamp: all of it blocks and runs in workers. No record is made; a batch is read up to the first match."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.parts.log_offsets import LogOffsets
from odradek.data_plane.log.parts.segment_list import SegmentList
from odradek.data_plane.log.record_rules import RECORDS_PARSED_MAX
from odradek.data_plane.log.segments.scan import SegmentScan
from odradek.data_plane.log.segments.segment import Segment
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import BatchHeader
from odradek.wire.batches.record_times import record_times


@attrs.frozen
class TimeLookup:
    """The parts of a log that a lookup reads, while the loop may change them."""

    offsets: LogOffsets
    segments: SegmentList
    config: LogConfig

    def offset_for_timestamp(self, timestamp_ms: int, upper_bound: int) -> tuple[int, int, int] | None:
        """See `PartitionLog.offset_for_timestamp`."""
        return self.segments.look(lambda: self._offset_for_timestamp(timestamp_ms, upper_bound))

    def offset_of_max_timestamp(self, upper_bound: int) -> tuple[int, int, int] | None:
        """See `PartitionLog.offset_of_max_timestamp`."""
        return self.segments.look(lambda: self._offset_of_max_timestamp(upper_bound))

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
        candidates: list[tuple[int, int]] = []
        for at, segment in enumerate(segments):
            if segment.base_offset >= upper_bound:
                break
            is_last = at + 1 == len(segments)
            end_offset = self.offsets.log_end_offset if is_last else segments[at + 1].base_offset
            if end_offset <= upper_bound:
                newest = segment.newest_timestamp_ms(interval)
            else:
                newest = _newest_below(segment, upper_bound)
            if newest >= 0:
                candidates.append((-newest, at))
        best: tuple[int, int, int] | None = None
        # The newest segment has it, unless compaction has taken the record and left its batch, or the header is wrong.
        for negative, at in sorted(candidates):
            if best is not None and best[0] >= -negative:
                break
            found = self._first_at(segments[at], -negative, upper_bound)
            if found is None:
                found = self._first_at(segments[at], _newest_below(segments[at], upper_bound), upper_bound)
            if found is not None and (best is None or found[0] > best[0]):
                best = found
        return best

    def _first_at(self, segment: Segment, timestamp_ms: int, upper_bound: int) -> tuple[int, int, int] | None:
        """Find the first record of the segment with exactly this timestamp; None without one, and for -1."""
        if timestamp_ms < 0:
            return None
        for header, found in self._batches(segment, 0, timestamp_ms):
            for offset, timestamp in found:
                if timestamp == timestamp_ms and offset < upper_bound:
                    return timestamp, offset, header.partition_leader_epoch
        return None

    def _batches(
        self, segment: Segment, position: int, timestamp_ms: int
    ) -> Iterator[tuple[BatchHeader, Iterator[tuple[int, int]]]]:
        """Yield the batches from `position` on whose newest record is not older than `timestamp_ms`: offsets and
        timestamps.

        Raises:
            CorruptBatch: there is no batch at the index's position.
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
    """Find the newest timestamp of the batches below `upper_bound` that have records, -1 without one."""
    newest = -1
    file = segment.pinned_file()
    try:
        for _, header in SegmentScan(file, 0, segment.size, segment.base_offset):
            if header.last_offset >= upper_bound:
                break
            if header.record_count:
                newest = max(newest, header.max_timestamp)
    finally:
        file.unpin()
    return newest
