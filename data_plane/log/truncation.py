"""Cut a log: at an offset where it parted from its leader's, or to begin anew where the leader's begins.

A cut is not on the device when it returns, and a power loss may bring back what was cut. So what is appended next
goes to a file of its own: in one file, old and new bytes might survive side by side. Names in a directory change in order: if the new
file is there, the later segments are gone. Recovery cuts the segment before it where the new one begins.

Below the recovery point all was said to be on the device; the lower one is made durable before anything is cut.
"""

from __future__ import annotations

import attrs

from data_plane.log.log_config import LogConfig
from data_plane.log.parts.cleaning_state import CleaningState
from data_plane.log.parts.durability import Durability
from data_plane.log.parts.lazy_producers import LazyProducers
from data_plane.log.parts.leader_epochs import LeaderEpochs
from data_plane.log.parts.log_home import half_done
from data_plane.log.parts.log_offsets import LogOffsets
from data_plane.log.parts.producer_recovery import aborted_in, remove_snapshots_above
from data_plane.log.parts.producer_state import ProducerState
from data_plane.log.parts.rolling import roll
from data_plane.log.parts.segment_list import SegmentList
from data_plane.log.segments.scan import SegmentScan
from data_plane.log.segments.segment import Segment
from odradek.env.ports import DiskRefused, File

_BEFORE_ALL = -1


@attrs.frozen
class Truncation:
    """The parts of a log that a cut changes."""

    offsets: LogOffsets
    segments: SegmentList
    epochs: LeaderEpochs
    producers: LazyProducers
    durability: Durability
    cleaning: CleaningState | None
    config: LogConfig

    def truncate_to(self, offset: int) -> None:
        """Remove what is at `offset` and behind it. Raises `KafkaError` and `DiskError` as `PartitionLog.truncate_to`.

        Batches go as a whole, and the log ends behind the last one that stays, so that segments join without gaps. A
        leader sends again what is missing then.
        """
        segments = self.segments
        if offset >= self.offsets.log_end_offset:
            # A leader that appended nothing has noted its epoch; the next leader may have taken another.
            self.epochs.truncate_from_end(self.offsets.log_end_offset)
            return
        at = segments.index_of(offset)
        if at < 0:
            self.start_over(offset)
            return
        last = segments.segments[at]
        interval = self.config.index_interval_bytes
        last.load_index(interval)
        aborted_in(segments.home.directory, segments.segments, last, interval)
        last.forget_places()
        file = last.pinned_file()
        try:
            offset = self._cut(at, last, file, offset)
        finally:
            file.unpin()
        self._check()
        self.producers.truncate(offset)
        try:
            if self.producers.is_unread_at(offset):
                # Read at first need, and that is now, unless there is no descriptor for it.
                self.producers.load(segments, self.config.index_interval_bytes)
            roll(segments, self.producers, self.config, offset, last.created_ms)
        except DiskRefused:
            # No room for a new file: the old one serves, until there is room to roll.
            return

    def _cut(self, at: int, last: Segment, file: File, offset: int) -> int:
        """Make `last` the last segment and cut it; the offset at which the log ends then."""
        segments = self.segments
        directory = segments.home.directory
        position, _ = last.position_of(offset, file, self.config.index_interval_bytes)
        offset = _end_offset(last, position)
        names = directory.list()
        if not position:
            segments.make_empty(last.base_offset)
        if self.cleaning is not None:
            self.cleaning.cut(offset)
        self.durability.lower_to(offset)
        with half_done():
            self.offsets.cut(offset)
            self.epochs.truncate_from_end(offset)
            doomed = segments.keep_first(at + 1)
            last.activate()
            segments.discard(doomed)
            remove_snapshots_above(directory, offset, names)
            if position:
                last.cut(position, offset)
            else:
                last.remove_index_files()
                last.remove_aborted_file()
                last.remove()
                segments.replace_active(
                    segments.put_in_place(last.base_offset, last.created_ms, last.jitter_ms)
                )
        return offset

    def start_over(self, offset: int) -> None:
        """Remove everything and start an empty log at `offset`."""
        self._start_over(offset)
        self.offsets.start_over(offset)
        self._check()

    def reach_back(self, base_offset: int) -> None:
        """Let an empty log's files begin below its log start offset, as the leader's do; its offsets stay as they are.

        Raises `DiskError`.
        """
        if not base_offset <= self.offsets.log_start_offset == self.offsets.log_end_offset:
            raise AssertionError(
                f"{self.segments.home}: a log from {self.offsets.log_start_offset} to {self.offsets.log_end_offset} "
                f"cannot begin at {base_offset}"
            )
        self._start_over(base_offset)
        self.offsets.stored_start_offset = min(self.offsets.stored_start_offset, base_offset)
        self.segments.home.log_start_raised()

    def _start_over(self, base_offset: int) -> None:
        """One empty segment in place of all files."""
        segments = self.segments
        directory = segments.home.directory
        doomed = segments.segments[::-1]
        names = directory.list()
        segments.make_empty(base_offset)
        if self.cleaning is not None:
            self.cleaning.cut(base_offset)
        self.durability.lower_to(base_offset)
        with half_done():
            self.epochs.clear()
            self.producers.take(ProducerState())
            segments.discard(doomed)
            remove_snapshots_above(directory, _BEFORE_ALL, names)
            fresh = segments.put_in_place(base_offset, doomed[0].created_ms)
        segments.replace_all(fresh)

    def _check(self) -> None:
        end_offset = self.offsets.log_end_offset
        self.offsets.check_order()
        self.segments.check_order()
        self.segments.check_end(end_offset)
        self.durability.check_end(end_offset)
        self.epochs.check_end(end_offset)


def _end_offset(segment: Segment, position: int) -> int:
    """The offset behind the last batch before `position`, where a batch begins."""
    start = 0 if segment.index is None else segment.index.position_floor(position - 1)
    scan = SegmentScan(segment.file, start, position, segment.base_offset)
    for _ in scan:
        continue
    return scan.next_offset
