"""Finds records by timestamp (ListOffsets): the first at or after a time, or the newest; blocking, in workers.
A batch is parsed only up to the first match, without making record objects.

Theory of operation
-------------------
A look-up skips segments and batches whose records are all older than the wanted time. But headers and time
indexes only repeat timestamps that producers have sent, and these may be wrong. So a walk first reads the
records (`segments/walked_times.py`). It begins where the last walk ended, and ends at the match. There is one
exception. If a segment's file was last changed before the wanted time, its headers are believed, and it is
skipped without a walk. All its records were appended earlier, so only a timestamp in the future could match.

The caller's budget limits the walks. If the budget is used up, headers are believed. The next look-up
continues the walk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import attrs

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.parts.log_offsets import LogOffsets
from odradek.data_plane.log.parts.segment_list import SegmentList
from odradek.data_plane.log.record_rules import RECORDS_PARSED_MAX
from odradek.data_plane.log.segments.scan import SegmentScan
from odradek.data_plane.log.segments.segment import Segment
from odradek.data_plane.log.segments.segment_times import modified_ms, walk_times
from odradek.data_plane.log.segments.walked_times import WalkBudget, newest_in
from odradek.env.ports import File
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import BatchHeader
from odradek.wire.batches.record_times import record_times

_Found: TypeAlias = tuple[int, int, int]
"""A found record: (timestamp in ms, offset, leader epoch)."""


@attrs.frozen
class TimeLookup:
    """The parts of a log that a look-up reads, while the loop may change them."""

    offsets: LogOffsets
    segments: SegmentList
    config: LogConfig
    budget: WalkBudget

    def offset_for_timestamp(self, timestamp_ms: int, upper_bound: int) -> _Found | None:
        """Find the first record below `upper_bound` whose timestamp is at least `timestamp_ms`. Returns
        (timestamp, offset, leader epoch), or None.

        Call it in a worker, because it parses records, which blocks. Raises `KafkaError`, `DiskError`.
        """
        return self.segments.look(lambda: self._offset_for_timestamp(timestamp_ms, upper_bound))

    def offset_of_max_timestamp(self, upper_bound: int) -> _Found | None:
        """Find the first record below `upper_bound` that has the newest timestamp (blocking). Returns
        (timestamp, offset, leader epoch), or None.
        """
        return self.segments.look(lambda: self._offset_of_max_timestamp(upper_bound))

    # --- the first record at or after a time

    def _offset_for_timestamp(self, timestamp_ms: int, upper_bound: int) -> _Found | None:
        start_offset = self.offsets.log_start_offset
        segments = self.segments.segments
        for at, segment in enumerate(segments):
            if segment.base_offset >= upper_bound:
                return None
            if at + 1 < len(segments) and segments[at + 1].base_offset <= start_offset:
                continue
            position = self._place_of(segment, timestamp_ms, start_offset)
            if position is None:
                continue
            for header, found in self._batches(segment, position, timestamp_ms):
                if header.base_offset >= upper_bound:
                    return None
                for offset, timestamp in found:
                    if timestamp >= timestamp_ms and start_offset <= offset < upper_bound:
                        return timestamp, offset, header.partition_leader_epoch
        return None

    def _place_of(self, segment: Segment, timestamp_ms: int, start_offset: int) -> int | None:
        """Return the position from which to search the segment; None if all its records are older."""
        interval = self.config.index_interval_bytes
        claimed = segment.newest_timestamp_ms(interval)
        if claimed < timestamp_ms and not self._may_be_newer(segment, timestamp_ms):
            return None
        size = segment.size
        # If records at the segment's start were deleted, a match may be a deleted record. So walk the whole
        # segment in this case, not only up to the first match.
        until_ms = timestamp_ms if start_offset <= segment.base_offset else None
        walked = walk_times(segment, until_ms, self.budget, self.config)
        if walked.newest_ms < timestamp_ms:
            if walked.position >= size or claimed < timestamp_ms:
                return None
            # The rest of the segment was not walked, so its headers are believed.
            return max(walked.position, self._indexed(segment, timestamp_ms, start_offset))
        if walked.is_settled and walked.are_claims_true:
            return self._indexed(segment, timestamp_ms, start_offset)
        position = walked.place_of(timestamp_ms)
        if until_ms is None:
            file = segment.pinned_file()
            try:
                position = max(position, segment.position_of(start_offset, file, interval)[0])
            finally:
                file.unpin()
        return position

    def _may_be_newer(self, segment: Segment, timestamp_ms: int) -> bool:
        """True if the segment may have a record of this time or later, although its batch headers name only
        older times.
        """
        walked = segment.walked
        if walked is not None and walked.covers(segment.size):
            return walked.newest_ms >= timestamp_ms
        return segment.is_active or modified_ms(segment) >= timestamp_ms

    def _indexed(self, segment: Segment, timestamp_ms: int, start_offset: int) -> int:
        """Return the position at which to begin a search, according to the segment's indexes alone."""
        index = segment.load_index(self.config.index_interval_bytes)
        known = index.offset_for_timestamp(timestamp_ms)
        return index.position_for_offset(max(known, start_offset - segment.base_offset))[1]

    # --- the newest record

    def _offset_of_max_timestamp(self, upper_bound: int) -> _Found | None:
        segments = self.segments.segments
        candidates = [
            (-self._newest_possible(segment), at)
            for at, segment in enumerate(segments)
            if segment.base_offset < upper_bound and segment.size
        ]
        best: _Found | None = None
        for negative, at in sorted(candidates):
            if best is not None and best[0] > -negative:
                break
            is_last = at + 1 == len(segments)
            end_offset = self.offsets.log_end_offset if is_last else segments[at + 1].base_offset
            found = self._newest_in(segments[at], end_offset, upper_bound)
            if found is not None and (best is None or (found[0], -found[1]) > (best[0], -best[1])):
                best = found
        return best

    def _newest_possible(self, segment: Segment) -> int:
        """Return an upper bound of the timestamps in the segment, apart from timestamps in the future."""
        claimed = segment.newest_timestamp_ms(self.config.index_interval_bytes)
        walked = segment.walked
        if walked is not None and walked.position >= segment.size:
            return walked.newest_ms
        return max(claimed, modified_ms(segment))

    def _newest_in(self, segment: Segment, end_offset: int, upper_bound: int) -> _Found | None:
        """Find the first record below `upper_bound` that has the newest timestamp of a segment, which ends at
        `end_offset`.
        """
        size = segment.size
        walked = walk_times(segment, None, self.budget, self.config)
        if end_offset > upper_bound:
            newest = self._newest_below(segment, upper_bound)
        elif walked.position >= size:
            newest = walked.newest_ms
        else:
            newest = max(walked.newest_ms, segment.newest_timestamp_ms(self.config.index_interval_bytes))
        found = self._first_at(segment, newest, upper_bound)
        if found is None and walked.position < size:
            # No record has this timestamp. So it comes from the wrong header of a batch that no walk has
            # reached. Search again, with the newest timestamp of the batches below `upper_bound`.
            found = self._first_at(segment, self._newest_below(segment, upper_bound), upper_bound)
        return found

    def _first_at(self, segment: Segment, timestamp_ms: int, upper_bound: int) -> _Found | None:
        """Return the first record of the segment with exactly this timestamp. None if there is no such
        record, or the timestamp is -1.
        """
        if timestamp_ms < 0:
            return None
        walked = segment.walked
        position = 0 if walked is None or walked.is_settled else walked.place_of(timestamp_ms)
        for header, found in self._batches(segment, position, timestamp_ms):
            for offset, timestamp in found:
                if timestamp == timestamp_ms and offset < upper_bound:
                    return timestamp, offset, header.partition_leader_epoch
        return None

    def _newest_below(self, segment: Segment, upper_bound: int) -> int:
        """Return the newest timestamp, in ms, of the batches below `upper_bound` that have records; -1 if
        there are none.
        """
        newest = -1
        file = segment.pinned_file()
        try:
            for at, header in SegmentScan(file, 0, segment.size, segment.base_offset):
                if header.last_offset >= upper_bound:
                    break
                if header.record_count:
                    newest = max(newest, self._newest_of(segment, file, at, header))
        finally:
            file.unpin()
        return newest

    # --- batches

    def _batches(
        self, segment: Segment, position: int, timestamp_ms: int
    ) -> Iterator[tuple[BatchHeader, Iterator[tuple[int, int]]]]:
        """Yield (header, records) of the batches from `position` on whose newest record is not older than
        `timestamp_ms`. Records are (offset, timestamp).

        Raises:
            CorruptBatch: there is no batch at the index's position.
            InvalidRecord: a batch has more than `RECORDS_PARSED_MAX` records.
        """
        file = segment.pinned_file()
        try:
            scan = SegmentScan(file, position, segment.size, segment.base_offset)
            for at, header in scan:
                if (
                    header.max_timestamp >= timestamp_ms
                    or self._newest_of(segment, file, at, header) >= timestamp_ms
                ):
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

    def _newest_of(self, segment: Segment, file: File, position: int, header: BatchHeader) -> int:
        """Return the newest timestamp of a batch from its header. If walks have found wrong headers in this
        segment and have reached the batch, reads the records instead.
        """
        walked = segment.walked
        if walked is None or walked.are_claims_true or position >= walked.position:
            return header.max_timestamp
        return newest_in(file.pread(header.size, position), header, self.config.decompressed_bytes_max)
