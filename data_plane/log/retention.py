"""The deletion of a log's old records: by size and age, and by request (DeleteRecords, KIP-107).

Whole segments go, the oldest first, never beyond the high watermark. Two files must be on the device
before others go: the file that shows the log's end, and the snapshot of the producers.
"""

from __future__ import annotations

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.parts.leader_epochs import LeaderEpochs
from odradek.data_plane.log.parts.log_home import half_done
from odradek.data_plane.log.parts.log_offsets import LogOffsets
from odradek.data_plane.log.parts.segment_list import SegmentList
from odradek.data_plane.log.segments.segment import LOG_SUFFIX, Segment
from odradek.env.ports import DiskHung
from odradek.wire.errors import ErrorCode, KafkaError


def set_log_start_offset(
    offsets: LogOffsets, segments: SegmentList, epochs: LeaderEpochs, offset: int
) -> None:
    """Raise the log start offset; segments that end below it go with the next retention run.

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


def delete_old_segments(
    offsets: LogOffsets, segments: SegmentList, epochs: LeaderEpochs, config: LogConfig, now_ms: int
) -> int:
    """Remove the segments that may go, except the last one; returns their number. Raises `DiskError`.

    The log's start rises before the files go: a reader that searched a file under its name would take its loss for
    a failure.
    """
    count = min(deletable(offsets, segments, config, now_ms), len(segments.segments) - 1)
    if count <= 0:
        return 0
    doomed = segments.drop_first(count)
    base_offset = segments.base_offset
    offsets.raise_start(base_offset)
    epochs.truncate_from_start(offsets.log_start_offset)

    def work() -> list[str]:
        with half_done():
            return segments.mark_deleted(doomed)

    def finish(renamed: list[str]) -> None:
        segments.let_go(renamed)
        offsets.store_start(base_offset)

    try:
        segments.home.change(work, finish)
    except DiskHung as error:
        if not error.goes_on:
            segments.restore_first(doomed)
        raise
    return count


def deletable(offsets: LogOffsets, segments: SegmentList, config: LogConfig, now_ms: int) -> int:
    """Count the oldest segments that may go; before all may, a new one must be begun. Raises `DiskError`."""
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
            expired = now_ms - _newest_ms(segment, config) > config.retention_ms
        if not expired:
            return at
        excess -= segment.size
    return len(listed)


def _newest_ms(segment: Segment, config: LogConfig) -> int:
    """Find the timestamp that is the age of a segment: its newest record's, or its file's where records have none."""
    newest = segment.newest_timestamp_ms(config.index_interval_bytes)
    if newest < 0 and segment.size:
        return segment.directory.modified_ms(segment.name(LOG_SUFFIX))
    return newest
