"""Truncates a log at an offset, or empties it and starts it elsewhere; `replication/truncation.py` computes the
offset. The offset is the place where the log diverges from its leader's log. Without any records, the log
begins anew where the leader's log begins.

A truncation is not synced. So a power loss may bring the removed bytes back. If appends continued in the same
file, old and new bytes might then lie side by side. So the next append goes to a new file. The names in a
directory reach the device in the order of their changes. If the new file is there after a power loss, the
removed later segments are gone. Recovery cuts the segment before the new one at the offset where the new
segment begins.

All bytes below the recovery point count as durable. So the recovery point is lowered durably before anything
is removed.

    looked: where to cut -> begun: a flush counts no more -> files cut (the disk's thread) -> finished: the log is cut

If the device does not answer in time, the truncation waits before the last step. Until then the state in
memory is unchanged. Meanwhile the log is unsettled (`LogHome.change`): it refuses appends and reads.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.parts.cleaning_state import CleaningState
from odradek.data_plane.log.parts.durability import Durability
from odradek.data_plane.log.parts.lazy_producers import LazyProducers
from odradek.data_plane.log.parts.leader_epochs import LeaderEpochs
from odradek.data_plane.log.parts.log_home import half_done, needing_room
from odradek.data_plane.log.parts.log_offsets import LogOffsets
from odradek.data_plane.log.parts.producer_recovery import aborted_in, remove_snapshots_above
from odradek.data_plane.log.parts.producer_state import ProducerState
from odradek.data_plane.log.parts.rolling import roll
from odradek.data_plane.log.parts.segment_list import SegmentList
from odradek.data_plane.log.segments.file_names import TXN_INDEX_SUFFIX
from odradek.data_plane.log.segments.scan import SegmentScan
from odradek.data_plane.log.segments.segment import Segment
from odradek.data_plane.log.segments.small_files import remove_if_present
from odradek.env.ports import DiskHung, DiskRefused
from odradek.named_states import reached

_BEFORE_ALL = -1


@attrs.frozen
class _CutFiles:
    """The result of cutting a log's files for a truncation."""

    renamed: list[str]
    """The names of files that are to be removed."""
    fresh: Segment | None
    """A new, empty segment if the truncation leaves no batch of the last segment; else None."""

    def leave(self) -> None:
        """Close the files that the truncation has opened, because the log was closed meanwhile."""
        if self.fresh is not None:
            self.fresh.file.close()


@attrs.frozen
class Truncation:
    """The parts of a log that a truncation changes."""

    offsets: LogOffsets
    segments: SegmentList
    epochs: LeaderEpochs
    producers: LazyProducers
    durability: Durability
    cleaning: CleaningState | None
    config: LogConfig

    def truncate_to(self, offset: int) -> None:
        """Remove all records from `offset` on. Raises the same errors as `PartitionLog.truncate_to`.

        Only whole batches are removed. If `offset` lies within a batch, the whole batch is removed, and the
        log ends after the batch before it. So there is no gap. The leader sends the missing records again.
        """
        segments = self.segments
        if offset >= self.offsets.log_end_offset:
            reached("log.epoch_without_records_cut")
            # Forget an epoch that begins at the log's end, because its leader has appended nothing, and the
            # next leader may have used another epoch.
            self.epochs.truncate_from_end(self.offsets.log_end_offset)
            return
        at = segments.index_of(offset)
        if at < 0:
            reached("log.cut_below_first_segment")
            self.start_over(offset)
            return
        last = segments.segments[at]
        interval = self.config.index_interval_bytes
        last.load_index(interval)
        if last.aborted is not None:
            aborted_in(last.aborted, segments.home.directory, segments.segments, last, interval)
        last.forget_places()
        file = last.pinned_file()
        try:
            position, _ = last.position_of(offset, file, interval)
            offset = _end_offset(last, position)
        finally:
            file.unpin()
        doomed = segments.segments[:at:-1]
        self._change(
            offset,
            lambda: self._cut_files(last, doomed, position, offset),
            lambda cut: self._take_cut(at + 1, cut, offset),
        )

    def _cut_files(self, last: Segment, doomed: tuple[Segment, ...], position: int, offset: int) -> _CutFiles:
        """Make `last` the last segment, and cut its file at `position`, the place of `offset` (blocking)."""
        segments = self.segments
        directory = segments.home.directory
        names = directory.list()
        if not position:
            segments.make_empty(last.base_offset)
        self._save_lowered()
        with half_done():
            renamed = segments.mark_deleted(doomed)
            remove_snapshots_above(directory, offset, names)
            if position:
                file = last.pinned_file()
                try:
                    last.cut(position, offset)
                finally:
                    file.unpin()
                return _CutFiles(renamed, None)
            last.remove_index_files()
            remove_if_present(directory, last.name(TXN_INDEX_SUFFIX))
            last.remove()
            fresh = segments.put_in_place(last.base_offset, last.created_ms, last.jitter_ms)
            return _CutFiles(renamed, fresh)

    def _take_cut(self, count: int, cut: _CutFiles, offset: int) -> None:
        """Complete a truncation in memory, once its files are cut: keep the first `count` segments, and let
        the log end at `offset`.
        """
        segments = self.segments
        self.offsets.cut(offset)
        self.epochs.truncate_from_end(offset)
        segments.keep_first(count)
        last = segments.active
        last.activate()
        if cut.fresh is not None:
            segments.replace_active(cut.fresh)
        segments.let_go(cut.renamed)
        self.durability.end_cut()
        self._check()
        self.producers.truncate(offset, self.offsets.high_watermark)
        try:
            if self.producers.is_unread_at(offset):
                # Read the producer state now. If no file descriptor is left, it is read when it is needed.
                self.producers.load(segments, self.config.index_interval_bytes)
            roll(segments, self.producers, self.config, offset, last.created_ms)
        except DiskRefused as error:
            reached("log.cut_without_new_segment")
            # The disk has no room for a new file, so the log continues in the old one until there is room.
            if isinstance(error, DiskHung):
                segments.home.refused(error)

    def start_over(self, offset: int) -> None:
        """Remove all records, and start an empty log at `offset`."""

        def then() -> None:
            self.offsets.start_over(offset)
            self._check()

        self._start_over(offset, then)

    def reach_back(self, base_offset: int) -> None:
        """Let the files of an empty log begin at `base_offset`, at or below its log start offset. They then
        begin within or before the leader's first batch. The log's offsets do not change.

        Raises `DiskError`.
        """
        if not base_offset <= self.offsets.log_start_offset == self.offsets.log_end_offset:
            raise AssertionError(
                f"{self.segments.home}: a log with the offsets {self.offsets.log_start_offset} to "
                f"{self.offsets.log_end_offset} cannot begin at {base_offset}"
            )

        def then() -> None:
            reached("log.reached_back")
            self.offsets.stored_start_offset = min(self.offsets.stored_start_offset, base_offset)
            self.segments.home.log_start_raised()

        self._start_over(base_offset, then)

    def _start_over(self, base_offset: int, then: Callable[[], None]) -> None:
        """Replace all files by one empty segment at `base_offset`, and then call `then`."""
        doomed = self.segments.segments[::-1]

        def take(cut: _CutFiles) -> None:
            assert cut.fresh is not None, "a log that begins anew must have a segment"
            self.epochs.clear()
            self.producers.take(ProducerState())
            self.segments.replace_all(cut.fresh)
            self.segments.let_go(cut.renamed)
            self.durability.end_cut()
            then()

        self._change(base_offset, lambda: self._replace_files(base_offset, doomed), take)

    def _replace_files(self, base_offset: int, doomed: tuple[Segment, ...]) -> _CutFiles:
        """Create the file of an empty segment, and rename all other files for removal (blocking)."""
        segments = self.segments
        directory = segments.home.directory
        names = directory.list()
        segments.make_empty(base_offset)
        self._save_lowered()
        with half_done():
            renamed = segments.mark_deleted(doomed)
            remove_snapshots_above(directory, _BEFORE_ALL, names)
            return _CutFiles(renamed, segments.put_in_place(base_offset, doomed[0].created_ms))

    def _change(self, offset: int, cut: Callable[[], _CutFiles], take: Callable[[_CutFiles], None]) -> None:
        """Let the disk cut the files at `offset`, then apply the truncation to the log in memory."""
        if self.cleaning is not None:
            self.cleaning.cut(offset)
        self.durability.begin_cut(offset)
        self.segments.home.change(cut, take, _CutFiles.leave, self.durability.end_cut)

    def _save_lowered(self) -> None:
        """Write lower offsets to the checkpoints before any bytes are removed (blocking). Raises
        `KafkaError`, `DiskError`.
        """
        with needing_room():
            if self.cleaning is not None:
                self.cleaning.save_lowered()
            self.durability.save_lowered()

    def _check(self) -> None:
        end_offset = self.offsets.log_end_offset
        self.offsets.check_order()
        self.segments.check_order()
        self.segments.check_end(end_offset)
        self.durability.check_end(end_offset)
        self.epochs.check_end(end_offset)


def _end_offset(segment: Segment, position: int) -> int:
    """Return the offset after the last batch before `position`, at which a batch begins."""
    start = 0 if segment.index is None else segment.index.position_floor(position - 1)
    scan = SegmentScan(segment.file, start, position, segment.base_offset)
    for _ in scan:
        continue
    return scan.next_offset
