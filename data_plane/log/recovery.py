"""Reads a log after a crash, from the segment with the recovery point on, and cuts it off at the first
damage.

`loading` explains the rules of recovery. While reading, recovery derives indexes, leader epochs and producer
state anew.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import attrs

from odradek.data_plane.log.log_config import LONG_MAX, LogConfig
from odradek.data_plane.log.parts.leader_epochs import LeaderEpochs
from odradek.data_plane.log.parts.log_home import LogHome
from odradek.data_plane.log.parts.producer_recovery import (
    latest_state,
    note_ended,
    note_scanned,
    remove_snapshots_above,
    replay,
    write_snapshot,
)
from odradek.data_plane.log.parts.producer_state import ProducerState
from odradek.data_plane.log.parts.segment_list import SegmentList
from odradek.data_plane.log.salvage import keep_segment, keep_tail
from odradek.data_plane.log.segments.file_names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from odradek.data_plane.log.segments.scan import RECOVERY_CHUNK_BYTES, SegmentScan
from odradek.data_plane.log.segments.segment import RELATIVE_OFFSET_MAX, Segment
from odradek.data_plane.log.segments.small_files import remove_if_present
from odradek.env.ports import Log
from odradek.named_states import reached
from odradek.wire.batches.batch_header import BatchHeader


@attrs.frozen(kw_only=True)
class LoadOptions:
    """The facts about a log that are known before it is opened. An offset of -1 means unknown."""

    is_clean: bool
    """True if the last process that used the log has closed it and synced everything."""
    recovery_point: int = 0
    is_known: bool = True
    """True if a checkpoint has an entry for the log. Without an entry the recovery point is unknown, so
    recovery may read cleaned segments, too.
    """
    log_start_offset: int = -1
    first_dirty_offset: int = -1
    """The offset below which all records have been cleaned."""
    high_watermark: int = -1
    now_ms: int = 0
    random: Random | None = None
    """The random generator for `segment.jitter.ms`."""
    log: Log | None = None
    """The structlog-like logger for messages about repairs."""
    buffer: bytearray | None = None
    """Scratch memory for recovery, which the logs of a directory share."""
    must_know_id: bool = False
    """True if a `partition.metadata` file of a log with records must have a readable topic id."""
    gaps_are_known: bool = False
    """True if gaps between segments are no loss, because this start has split a segment."""
    is_stopping: Callable[[], bool] = lambda: False
    """A function that returns True once loading should stop; recovery asks it at every batch."""

    def warn(self, event: str, home: LogHome, **fields: object) -> None:
        """Log a warning about a repair of the log at `home`."""
        if self.log is not None:
            self.log.warning(event, topic=home.topic, partition=home.partition, **fields)


class LoadingStopped(Exception):
    """Raised if the node stops while logs are loading. Logs not loaded yet are left for the next start,
    unchanged or as after a crash.
    """


@attrs.frozen
class _Cut:
    """The place at which recovery has cut a segment. `damage` describes the fault after the segment's last
    good batch.
    """

    damage: str
    kept_as: str | None
    """The name of the file with the bytes that were cut off below the recovery point; None if there is no
    such file.
    """


def _is_thinned(header: BatchHeader, end_offset: int) -> bool:
    """True if compaction has removed records of this batch, or whole batches before it. `end_offset` is the
    offset at which the preceding batch ends.
    """
    return header.base_offset > end_offset or header.record_count <= header.last_offset_delta


class Recovery:
    """The recovery of one log: call `run` once, then read `log_end_offset` and `producers`."""

    def __init__(
        self, segments: SegmentList, epochs: LeaderEpochs, config: LogConfig, options: LoadOptions
    ) -> None:
        self._segments = segments
        self._epochs = epochs
        self._config = config
        self._options = options
        self._buffer = bytearray()
        known_offset = max(options.recovery_point, options.first_dirty_offset)
        self._known_offset = LONG_MAX if options.gaps_are_known else known_offset
        """The offset below which gaps do not mean lost records. All records below it were on the device, or
        have been cleaned.
        """
        self._has_gaps = False
        """True if the part of the log from `_known_offset` on has a gap between batches or within a batch. The
        log of a compacted leader has such gaps.
        """
        self.log_end_offset = 0
        self.producers = ProducerState()

    def run(self, names: list[str]) -> None:
        """Recover the log. `names` are the names of all files in its directory. Raises `DiskError`,
        `LoadingStopped`.
        """
        listed = self._segments.segments
        first = 0
        while first + 1 < len(listed) and listed[first + 1].base_offset < self._options.recovery_point:
            first += 1
        self._begin_at(first, names)
        for at in range(first, len(listed)):
            if at > first and not self._joins(at):
                break
            limit = listed[at + 1].base_offset if at + 1 < len(listed) else None
            if not self._take(at, limit, names, is_first=at == first):
                break
        listed = self._segments.segments
        for segment in listed[first:-1]:
            segment.write_index()
            if segment.aborted is not None:
                segment.aborted.write()
        active = self._segments.active
        active.activate()
        active.measure_tail()
        size = sum(segment.size for segment in listed[first:])
        if self._options.log is not None and size:
            self._options.log.info(
                "log.recovered",
                topic=self._segments.home.topic,
                partition=self._segments.home.partition,
                segments=len(listed) - first,
                bytes=size,
                log_end_offset=self.log_end_offset,
            )

    def _begin_at(self, first: int, names: list[str]) -> None:
        """Set epochs and producers to their state at the first segment to read."""
        listed = self._segments.segments
        directory = self._segments.home.directory
        start_offset = self.log_end_offset = listed[first].base_offset
        # Keep the epochs that begin below the recovery point. There the epochs' file is right, and it also
        # has epochs whose batches compaction has removed.
        self._epochs.truncate_from_end(max(start_offset + 1, self._options.recovery_point))
        interval = self._config.index_interval_bytes
        high_watermark = self._options.high_watermark
        self.producers, offset = latest_state(
            directory, listed[0].base_offset, start_offset, high_watermark, names
        )
        if offset < start_offset:
            replay(listed, self.producers, offset, start_offset, interval)
        # Remove the later snapshots, because they may be incomplete, or belong to truncated records. Recovery
        # writes new ones.
        remove_snapshots_above(directory, start_offset, names)
        if self._options.buffer is not None:
            self._buffer = self._options.buffer
        else:
            longest = max(segment.size for segment in listed[first:])
            self._buffer = bytearray(min(RECOVERY_CHUNK_BYTES, longest))

    def _joins(self, at: int) -> bool:
        """True if this segment begins where the segment before it ends. If not, drops it and all later
        segments from the log.
        """
        gap = self._segments.segments[at].base_offset - self.log_end_offset
        is_known = self.log_end_offset < self._known_offset
        if gap < 0 or (0 < gap <= RELATIVE_OFFSET_MAX and not is_known and not self._is_vouched_for(at)):
            reached("recovery.segment_behind_gap_dropped")
            self._drop_from(
                at,
                f"the part of the log before this segment ends at offset {self.log_end_offset}",
                is_kept=True,
            )
            return False
        return True

    def _is_vouched_for(self, at: int) -> bool:
        """True if batches of the log have gaps between them. Such gaps show that the log was compacted. Then
        the gap before this segment does not mean lost records either.

        This evidence counts only for a log without checkpoints, for example in a directory that was copied
        without them. If the log has checkpoints, Odradek itself has written the log. Odradek begins each
        segment at the end of the previous one, even on a follower of a compacted leader. So a gap above the
        offsets in the checkpoints is a loss.
        """
        if self._options.is_known:
            return False
        segments = self._segments.segments
        if not self._has_gaps:
            self._has_gaps = any(self._has_thinned_batch(segment) for segment in segments[at:])
        return self._has_gaps

    def _has_thinned_batch(self, segment: Segment) -> bool:
        """True if this segment shows compaction, because a sound batch lacks records, or there is a gap before
        it.
        """
        end_offset = segment.base_offset
        scan = SegmentScan(segment.file, 0, segment.size, end_offset, check_crc=True, buffer=self._buffer)
        found = False
        for _, header in scan:
            if self._options.is_stopping():
                raise LoadingStopped
            found = _is_thinned(header, end_offset)
            if found:
                break
            end_offset = header.next_offset
        segment.file.rest()
        return found

    def _take(self, at: int, limit: int | None, names: list[str], *, is_first: bool) -> bool:
        """Read one segment and keep its good batches. Returns True if the segment is not damaged, so that the
        log may continue after it.
        """
        segments = self._segments
        segment = segments.segments[at]
        self.log_end_offset = segment.base_offset
        if not is_first:
            write_snapshot(segments.home.directory, self.producers, segment.base_offset)
            segments.mark_dirty()
        size = segment.size
        # Remove the index files that the segment has now, because they may be outdated. New ones are written
        # at the end of this recovery, or when the segment is finished.
        if segment.name(INDEX_SUFFIX) in names or segment.name(TIME_INDEX_SUFFIX) in names:
            segment.remove_index_files()
        if segment.name(TXN_INDEX_SUFFIX) in names:
            remove_if_present(segment.directory, segment.name(TXN_INDEX_SUFFIX))
        cut = self._cut(segment, self._read(segment, limit), limit)
        if cut is None:
            return True
        self._options.warn(
            "log.truncated",
            segments.home,
            file=segment.file.path,
            position=segment.size,
            bytes=size - segment.size,
            is_synced_data=self.log_end_offset < self._options.recovery_point,
            offset=self.log_end_offset,
            reason=cut.damage,
            kept_as=cut.kept_as,
        )
        if at + 1 < len(segments.segments):
            reached("recovery.segments_behind_damage_dropped")
            self._drop_from(
                at + 1, "recovery cut the segment before this one", is_kept=cut.kept_as is not None
            )
        return False

    def _read(self, segment: Segment, limit: int | None) -> SegmentScan:
        """Check every batch of a segment, and derive index, epochs and producers. Returns the ended scan; it
        shows where the good batches end, and the fault after them.

        `limit` is the offset at which the next segment begins; None for the last segment. Batches at `limit` or
        above are dropped, because they had been truncated before the next segment was made.
        """
        interval = self._config.index_interval_bytes
        epochs = self._epochs
        latest = epochs.latest
        segment.begin_recovery()
        note = segment.note_batch
        end_offset = segment.base_offset
        scan = SegmentScan(segment.file, 0, segment.size, end_offset, check_crc=True, buffer=self._buffer)
        relative_max = end_offset + RELATIVE_OFFSET_MAX
        is_stopping, recovery_point = self._options.is_stopping, self._options.recovery_point
        known_offset = self._known_offset
        for position, header in scan:
            if is_stopping():
                reached("recovery.stopped")
                raise LoadingStopped
            last_offset = header.last_offset
            if limit is not None and last_offset >= limit:
                reached("recovery.leftover_of_truncation_cut")
                scan.stop_before(position, end_offset, None)
                break
            is_in_reach = last_offset <= relative_max
            if not is_in_reach and last_offset >= recovery_point:
                reached("recovery.offset_out_of_reach")
                reason = f"a batch has offset {last_offset}, which is too far from the segment's first offset"
                scan.stop_before(position, end_offset, reason)
                break
            if header.base_offset >= known_offset and _is_thinned(header, end_offset):
                self._has_gaps = True
            end_offset = last_offset + 1
            if is_in_reach:
                # Leave out a batch whose offset does not fit this segment's index; old versions of Kafka
                # wrote such batches. The segment is split after the whole log has been read
                # (`parts/splitting.py`).
                note(position, header.size, last_offset, header.max_timestamp, interval)
            epoch = header.partition_leader_epoch
            if epoch != latest and (epoch > latest or header.base_offset >= recovery_point):
                epochs.assign(epoch, header.base_offset)
                latest = epochs.latest
            if header.producer_id >= 0:
                ended = note_scanned(self.producers, segment, position, header)
                if ended is not None:
                    note_ended(segment, self.producers, ended)
        return scan

    def _cut(self, segment: Segment, scan: SegmentScan, limit: int | None) -> _Cut | None:
        """Cut off the bytes after the segment's good batches. Returns the damage; None if the log continues
        after this segment.
        """
        damage = None if scan.next_offset == limit else scan.damage
        kept_as = None
        if segment.size > scan.position:
            if damage is not None and scan.next_offset < self._options.recovery_point:
                reached("recovery.synced_tail_kept_aside")
                kept_as = keep_tail(self._segments.home.directory, segment, scan.position)
            reached("recovery.torn_tail_cut")
            segment.cut_durably(scan.position)
        if limit is not None:
            # Close the descriptor, because a process may have fewer descriptors than a log has segments.
            segment.file.rest()
        self.log_end_offset = scan.next_offset
        return None if damage is None else _Cut(damage, kept_as)

    def _drop_from(self, at: int, reason: str, *, is_kept: bool) -> None:
        """Remove this segment and all later ones from the log. If `is_kept` is true, their `.log` files are
        renamed and stay on the disk.
        """
        segments = self._segments
        directory = segments.home.directory
        doomed = segments.keep_first(at)
        for segment in reversed(doomed):
            kept_as = keep_segment(directory, segment) if is_kept else None
            self._options.warn(
                "log.segment_dropped",
                segments.home,
                file=segment.file.path,
                bytes=segment.size,
                reason=reason,
                kept_as=kept_as,
            )
        segments.let_go(segments.mark_deleted(doomed))
        # Sync the removals, so that a loss of power cannot bring the removed segments back after new records.
        directory.sync()
