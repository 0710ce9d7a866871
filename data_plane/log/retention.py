"""Deletes a log's old records: by size and age, and by request (DeleteRecords, KIP-107).

Whole segments are deleted, the oldest first, never above the high watermark. Before any segment is removed,
two files must be on the device: the file that shows the log's end, and the snapshot of the producers.
"""

from __future__ import annotations

from collections.abc import Callable

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.parts.leader_epochs import LeaderEpochs
from odradek.data_plane.log.parts.log_home import half_done
from odradek.data_plane.log.parts.log_offsets import LogOffsets
from odradek.data_plane.log.parts.producer_recovery import removable
from odradek.data_plane.log.parts.segment_list import SegmentList
from odradek.data_plane.log.segments.segment import Segment
from odradek.data_plane.log.segments.segment_times import is_known, modified_ms, walk_times
from odradek.data_plane.log.segments.walked_times import WalkBudget
from odradek.env.ports import DiskHung
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError


def set_log_start_offset(
    offsets: LogOffsets, segments: SegmentList, epochs: LeaderEpochs, offset: int
) -> None:
    """Raise the log start offset. The next retention run removes the segments that end below it.

    Raises:
        KafkaError: OFFSET_OUT_OF_RANGE above the high watermark.
    """
    if offset > offsets.high_watermark:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"cannot set the log start offset to {offset}, above the high watermark {offsets.high_watermark}",
        )
    if offset > offsets.log_start_offset:
        offsets.raise_start(offset)
        epochs.truncate_from_start(offset)
        segments.home.log_start_raised()
    elif offset > offsets.stored_start_offset:
        # Retention has removed these records, and no checkpoint shows it yet.
        segments.home.log_start_raised()


def delete_old_segments(
    offsets: LogOffsets, segments: SegmentList, epochs: LeaderEpochs, config: LogConfig, now_ms: int
) -> int:
    """Remove the segments that retention no longer keeps, except the last one. Returns their number. Raises
    `DiskError`.

    The log start offset rises before the files are removed, so that readers no longer need these files. A
    reader that found a needed file missing would take that for a disk failure. It is stored with the next
    checkpoint, because a loss of power may undo the removal.

    On a full disk some of these segments may have to stay (`removable`). The next run tries again.
    """
    count = min(deletable(offsets, segments, config, now_ms), len(segments.segments) - 1)
    if count <= 0:
        return 0
    before = segments.segments
    doomed = segments.drop_first(count)
    offsets.raise_start(segments.base_offset)
    epochs.truncate_from_start(offsets.log_start_offset)

    end_offset, removed = segments.base_offset, count

    def work() -> tuple[int, list[str]]:
        going = removable(segments.home.directory, before, end_offset, count, config.index_interval_bytes)
        with half_done():
            return going, segments.mark_deleted(doomed[:going])

    def finish(result: tuple[int, list[str]]) -> None:
        nonlocal removed
        removed, renamed = result
        if removed < count:
            segments.restore_first(doomed[removed:])
        if renamed:
            segments.let_go(renamed)

    try:
        segments.home.change(work, finish)
    except DiskHung as error:
        if not error.goes_on:
            reached("log.retention_undone")
            segments.restore_first(doomed)
        raise
    return removed


def deletable(offsets: LogOffsets, segments: SegmentList, config: LogConfig, now_ms: int) -> int:
    """Return how many segments may be removed, counted from the oldest. If all segments may be removed, the
    caller must begin a new segment first.

    A segment stays if its age matters but `look_at_ages` has not determined it.
    """
    limit_ms = now_ms - config.retention_ms
    return _count(offsets, segments, config, lambda segment: _is_known_to_be_old(segment, limit_ms))


def look_at_ages(
    offsets: LogOffsets, segments: SegmentList, config: LogConfig, now_ms: int, budget: WalkBudget
) -> bool:
    """Determine the ages of the segments that retention would remove next (blocking, in a worker). Returns
    False if the budget is used up first.

    Old timestamps in the batch headers are believed if the last change of the file was also that long ago. The
    records are read (`WalkedTimes`) if the file is younger, or if headers claim a time in the future. Raises
    `FileClosed` for a segment that was removed meanwhile, and `DiskError`.
    """
    limit_ms = now_ms - config.retention_ms

    def is_old(segment: Segment) -> bool:
        newest = segment.newest_timestamp_ms(config.index_interval_bytes)
        if is_known(segment):
            modified_ms(segment)
        elif limit_ms <= newest <= now_ms:
            return False
        elif modified_ms(segment) >= limit_ms or newest > now_ms:
            walk_times(segment, None, budget, config)
        return _is_known_to_be_old(segment, limit_ms)

    _count(offsets, segments, config, is_old)
    return not budget.is_used_up


def needs_look(offsets: LogOffsets, segments: SegmentList, config: LogConfig, now_ms: int) -> bool:
    """True if `look_at_ages` may find segments to remove that `deletable` does not count yet (on the loop)."""
    limit_ms = now_ms - config.retention_ms
    unknown = False

    def is_old(segment: Segment) -> bool:
        nonlocal unknown
        if _is_known_to_be_old(segment, limit_ms):
            return True
        unknown = segment.needs_index or not limit_ms <= segment.max_timestamp_ms <= now_ms
        return False

    _count(offsets, segments, config, is_old)
    return unknown


def _count(
    offsets: LogOffsets, segments: SegmentList, config: LogConfig, is_old: Callable[[Segment], bool]
) -> int:
    """Return how many segments may be removed, counted from the oldest, by their offsets, sizes or ages.
    `is_old` returns True for a segment that is old enough.
    """
    listed = segments.segments
    excess = -1
    if config.deletes_by_retention and config.retention_bytes >= 0:
        excess = segments.size_bytes - config.retention_bytes
    by_age = config.deletes_by_retention and config.retention_ms >= 0
    for at, segment in enumerate(listed):
        is_last = at + 1 == len(listed)
        end_offset = offsets.log_end_offset if is_last else listed[at + 1].base_offset
        if end_offset > offsets.high_watermark or (is_last and not segment.size):
            return at
        expired = end_offset <= offsets.log_start_offset and not is_last
        if not expired and excess >= segment.size:
            expired = True
        if not expired and by_age:
            expired = is_old(segment)
        if not expired:
            return at
        excess -= segment.size
    return len(listed)


def _is_known_to_be_old(segment: Segment, limit_ms: int) -> bool:
    """True if the segment's newest record is certainly older than `limit_ms`. For a segment without
    timestamps, the last change of the file decides.
    """
    if segment.aged is None or segment.aged[0] != segment.size or segment.needs_index:
        return False
    is_old_file = segment.aged[1] < limit_ms
    walked = segment.walked
    if walked is None or not walked.covers(segment.size):
        return segment.max_timestamp_ms < limit_ms and is_old_file
    newest = max(walked.newest_ms, walked.emptied_ms)
    if walked.is_damaged:
        newest = max(newest, segment.max_timestamp_ms)
    return is_old_file if newest < 0 else newest < limit_ms
