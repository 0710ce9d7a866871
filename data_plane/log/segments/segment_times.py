"""Reads the timestamps of a segment's records, and corrects the segment's time index if batch headers were
wrong.

All functions block and run in workers. `walked_times` explains when records are read.
"""

from __future__ import annotations

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.segments.file_names import LOG_SUFFIX, TIME_INDEX_SUFFIX
from odradek.data_plane.log.segments.segment import NO_TIMESTAMP, Segment
from odradek.data_plane.log.segments.segment_index import SegmentIndex
from odradek.data_plane.log.segments.small_files import write_whole
from odradek.data_plane.log.segments.walked_times import WalkBudget, WalkedTimes
from odradek.env.ports import DiskHung, DiskRefused, FileClosed, FileMissing

__all__ = ["is_known", "modified_ms", "walk_times"]


def walk_times(segment: Segment, until_ms: int | None, budget: WalkBudget, config: LogConfig) -> WalkedTimes:
    """Continue the walk over the records until a timestamp is `until_ms` or later (None: to the end), or the
    budget is used up. Returns all results so far.

    Raises `FileClosed` if the segment was removed, and `DiskError`.
    """
    walked = segment.walked
    if walked is None:
        walked = segment.walked = WalkedTimes(segment.base_offset)
    size = segment.size
    file = segment.pinned_file()
    try:
        walked.walk(file, size, until_ms, budget, config.decompressed_bytes_max)
    finally:
        file.unpin()
    if not segment.is_active and not walked.is_settled and walked.position >= size:
        if not walked.are_claims_true:
            _correct_time_index(segment, walked, config.index_interval_bytes)
        walked.settle()
    return walked


def is_known(segment: Segment) -> bool:
    """True if a walk has covered all records that the segment has now."""
    walked = segment.walked
    return walked is not None and walked.covers(segment.size)


def modified_ms(segment: Segment) -> int:
    """Return the time of the file's last change in ms, which `Segment.aged` caches. Raises `FileClosed` if
    the segment was removed, `DiskError`.
    """
    size = segment.size
    try:
        at_ms = segment.directory.modified_ms(segment.name(LOG_SUFFIX))
    except FileMissing:
        if segment.is_removed:
            raise _removed(segment) from None
        raise
    segment.aged = (size, at_ms)
    return at_ms


def _correct_time_index(segment: Segment, walked: WalkedTimes, interval: int) -> None:
    """Rewrite the time index of a finished segment, so that it agrees with the timestamps of the records."""
    old, fresh = segment.load_index(interval), SegmentIndex()
    fresh.offsets, fresh.positions = old.offsets, old.positions
    base_offset, directory = segment.base_offset, segment.directory
    for timestamp_ms, offset in walked.entries():
        fresh.append_time(timestamp_ms, offset - base_offset)
    fresh.append_time(walked.emptied_ms, walked.next_offset - 1 - base_offset)
    if segment.is_removed:
        # The path may belong to another segment by now, so a file written here could damage that segment.
        raise _removed(segment)
    times = len(fresh.times)
    try:
        write_whole(directory, segment.name(TIME_INDEX_SUFFIX), fresh.time_bytes(0, times))
    except DiskHung:
        raise
    except DiskRefused:
        segment.remove_index_files()
    else:
        segment.index_is_written = (segment.index_is_written[0], times)
    segment.index = fresh
    segment.max_timestamp_offset = base_offset + fresh.time_offsets[-1] if times else base_offset
    segment.max_timestamp_ms = fresh.times[-1] if times else NO_TIMESTAMP


def _removed(segment: Segment) -> FileClosed:
    return FileClosed(segment.directory.path, segment.file.path, "open", 0, "removed meanwhile")
