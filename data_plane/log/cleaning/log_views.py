"""Collects the facts about logs by which cleaning passes are planned. The event loop plans passes; workers
read timestamps.
"""

from __future__ import annotations

from itertools import pairwise

from odradek.data_plane.log.cleaning.plan import LogView, SegmentView, first_dirty_offset
from odradek.data_plane.log.log_config import LONG_MAX, TIME_ENTRY_BYTES, LogConfig
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.segments.segment import NO_TIMESTAMP, Segment
from odradek.data_plane.log.segments.segment_times import is_known, modified_ms, walk_times
from odradek.data_plane.log.segments.walked_times import UNBOUNDED, WalkBudget, newest_in
from odradek.env.pausing import pause
from odradek.env.ports import File
from odradek.wire.batches.batch_header import HEADER_SIZE, parse_header


def needs_timestamps(config: LogConfig) -> bool:
    """True if the configuration has a rule that depends on the ages of segments."""
    return config.min_compaction_lag_ms > 0 or config.max_compaction_lag_ms < LONG_MAX


def view_of(log: PartitionLog) -> LogView:
    """Describe the present state of a log for planning."""
    interval = max(log.config.index_interval_bytes, HEADER_SIZE)
    committed = min(log.high_watermark, log.last_stable_offset)
    return LogView(
        config=log.config,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        first_dirty_offset=log.first_dirty_offset,
        committed_end=committed,
        segments=[
            SegmentView(
                each.base_offset,
                each.size,
                # Use an upper bound of the index's size, because the index may not be in memory.
                (each.size // interval + 1) * TIME_ENTRY_BYTES,
                each.max_timestamp_ms,
                each.first_timestamp_ms,
            )
            for each in log.segments
        ],
    )


def read_timestamps(log: PartitionLog, now_ms: int) -> None:
    """Read the ages of finished segments that are not known yet (blocking, in a worker).

    The records of a dirty segment are read if its batch headers may be wrong. There are two cases. Either the
    newest timestamp in the headers is older than `min.compaction.lag.ms`, but the file was changed after
    that. Or the newest timestamp lies in the future. The records of clean segments are not read, because
    passes rewrite such segments, and so their files are always young.

    Raises `FileClosed` if a segment or the log was removed meanwhile; also `DiskError`, `CorruptBatch`.
    """
    config = log.config
    limit_ms = now_ms - config.min_compaction_lag_ms
    segments = log.segments
    dirty = first_dirty_offset(view_of(log))
    for segment, after in pairwise(segments):
        pause()
        newest = segment.newest_timestamp_ms(config.index_interval_bytes)
        is_dirty = after.base_offset > dirty
        if is_dirty and config.min_compaction_lag_ms > 0 and segment.size and not is_known(segment):
            is_unsure = newest <= limit_ms < modified_ms(segment) or newest > now_ms
            if is_unsure:
                walk_times(segment, None, WalkBudget(UNBOUNDED), config)
        if segment.first_timestamp_ms == NO_TIMESTAMP and segment.size:
            segment.first_timestamp_ms = _first_timestamp(segment, config)


def _first_timestamp(segment: Segment, config: LogConfig) -> int:
    """Return the newest timestamp of the records in the segment's first batch. If the records cannot be read,
    returns the newest timestamp in the batch's header.
    """
    file: File = segment.pinned_file()
    try:
        header = parse_header(file.pread(HEADER_SIZE, 0))
        return newest_in(file.pread(header.size, 0), header, config.decompressed_bytes_max)
    finally:
        file.unpin()
