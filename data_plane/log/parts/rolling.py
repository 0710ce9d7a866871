"""Finishes the active segment and begins the next one. `segment_list` decides when."""

from __future__ import annotations

from functools import partial

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.parts.lazy_producers import LazyProducers
from odradek.data_plane.log.parts.segment_list import SegmentList
from odradek.data_plane.log.segments.file_names import LOG_SUFFIX, file_name
from odradek.data_plane.log.segments.segment import Segment
from odradek.data_plane.log.segments.small_files import remove_if_present
from odradek.env.ports import DiskError, DiskRefused
from odradek.named_states import reached


def roll(
    segments: SegmentList,
    producers: LazyProducers,
    config: LogConfig,
    log_end_offset: int,
    now_ms: int,
    base_offset: int | None = None,
) -> None:
    """Finish the active segment, and begin a new one at the log end offset.

    `base_offset` is the base offset of the new segment; None means the log end offset. The caller passes a
    higher offset if the gap before the next batch is too wide for one segment.

    Raises:
        DiskRefused: there is no new segment.
        DiskError: the log directory is offline now.
    """
    new_base = log_end_offset if base_offset is None else base_offset
    old = segments.active
    if old.base_offset == new_base:
        old.begin(now_ms, old.jitter_ms)
        return
    home = segments.home
    with home.reporting_failures():
        write = partial(_write, segments, producers, config, log_end_offset, now_ms, new_base)
        fresh = home.directory.in_time(write, partial(_remove, segments))
    segments.mark_dirty()
    segments.add(fresh, log_end_offset)
    home.log_rolled()


def _write(
    segments: SegmentList,
    producers: LazyProducers,
    config: LogConfig,
    log_end_offset: int,
    now_ms: int,
    base_offset: int,
) -> Segment:
    """Create the new segment's file, and write the files of the finished one (blocking). Raises `DiskError`."""
    old = segments.active
    # Write the transaction index first. Unlike the other indexes, it cannot be derived from the segment
    # alone. So if the disk refuses the write, no new segment begins.
    if old.aborted is not None:
        old.aborted.write()
    fresh = segments.create(base_offset, now_ms)
    try:
        old.write_index()
        # Write the snapshot before the segment counts as finished, so that a flush syncs both.
        producers.write_snapshot(segments, log_end_offset, config.index_interval_bytes)
    except DiskError:
        _remove(segments, fresh)
        raise
    return fresh


def _remove(segments: SegmentList, fresh: Segment) -> None:
    """Remove the new segment's file, because the roll has failed (blocking).

    The old segment may still take batches, for example smaller ones. At the next start, recovery would cut them off
    before an empty segment that begins below them. So the directory goes offline if the file cannot be removed.
    """
    reached("log.roll_undone")
    fresh.file.close()
    directory = segments.home.directory
    try:
        remove_if_present(directory, file_name(fresh.base_offset, LOG_SUFFIX))
    except DiskRefused as error:
        reason = f"the file of a segment that was not begun must not stay ({error})"
        raise DiskError(error.directory, error.path, "remove", error.errno, reason) from error
    segments.mark_dirty()
