"""Plans a pass: chooses the dirtiest log, the offset where the pass ends, and the segments that are joined.
PURE.

The rules are those of Kafka's `LogCleanerManager` and `Cleaner.groupSegmentsBySize`. Sizes are in bytes,
times in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from odradek.data_plane.log.log_config import LONG_MAX, LogConfig

OFFSET_RANGE_MAX = (1 << 31) - 1
GROUP_SEGMENTS_MAX = 100
"""The most segments in one group. A swap renames the files of a whole group within one turn of the event
loop, which must be short.
"""


@attrs.frozen
class SegmentView:
    """The facts about one segment that planning needs."""

    base_offset: int
    size: int
    index_bytes: int = 0
    """The size of the larger of the segment's two indexes."""
    max_timestamp_ms: int = -1
    """The segment's newest timestamp. It is read only if `min.compaction.lag.ms` needs it."""
    first_timestamp_ms: int = -1
    """The timestamp of the segment's first batch; -1 if unknown. It is read only if `max.compaction.lag.ms`
    needs it.
    """


@attrs.frozen
class LogView:
    """The facts about one log that planning needs."""

    config: LogConfig
    log_start_offset: int
    log_end_offset: int
    first_dirty_offset: int
    """The first dirty offset in the checkpoint; -1 if there is none."""
    committed_end: int
    """The lower of the high watermark and the last stable offset."""
    segments: Sequence[SegmentView]
    """All segments, the active one last."""


@attrs.frozen
class LogPlan:
    """A plan of a pass over one log, made from the log's present state."""

    first_dirty_offset: int
    end_offset: int
    """The offset below which records may be cleaned. It is the base offset of a segment."""
    clean_bytes: int
    dirty_bytes: int
    compaction_delay_ms: int
    """The time since the oldest dirty record became older than `max.compaction.lag.ms`; 0 if it is not yet that
    old.
    """

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """True if the log is dirty enough, or if its records have waited for too long."""
        if not self.dirty_bytes:
            return False
        return self.compaction_delay_ms > 0 or self.dirty_ratio > config.min_cleanable_dirty_ratio


def first_dirty_offset(view: LogView) -> int:
    """Return the offset at which the dirty part starts: the first dirty offset in the checkpoint. If that
    offset lies outside of the log, returns the log's start (Kafka's rule).
    """
    checkpoint = view.first_dirty_offset
    if checkpoint < view.log_start_offset or checkpoint > view.log_end_offset:
        return view.log_start_offset
    return checkpoint


def plan_log(view: LogView, now_ms: int) -> LogPlan:
    """Plan a pass over this log, as of now."""
    dirty = first_dirty_offset(view)
    finished = view.segments[:-1]
    end = _end(view, dirty, now_ms)
    ends = [each.base_offset for each in view.segments[1:]]
    clean = sum(each.size for each, limit in zip(finished, ends, strict=True) if limit <= dirty)
    cleanable = sum(each.size for each, limit in zip(finished, ends, strict=True) if dirty < limit <= end)
    return LogPlan(dirty, max(end, dirty), clean, cleanable, _overdue_ms(view, dirty, now_ms))


def _end(view: LogView, dirty: int, now_ms: int) -> int:
    """Return the offset below which the log may be cleaned: the greatest possible base offset of a segment.
    All records below it are committed, old enough, and in finished segments.
    """
    lag_ms = view.config.min_compaction_lag_ms
    end = view.segments[0].base_offset
    for segment, after in zip(view.segments, view.segments[1:], strict=False):
        if after.base_offset > view.committed_end:
            break
        if lag_ms > 0 and after.base_offset > dirty and segment.max_timestamp_ms > now_ms - lag_ms:
            break
        end = after.base_offset
    return end


def _overdue_ms(view: LogView, dirty: int, now_ms: int) -> int:
    lag_ms = view.config.max_compaction_lag_ms
    if lag_ms >= LONG_MAX:
        return 0
    oldest = min(
        (
            each.first_timestamp_ms
            for each, after in zip(view.segments, view.segments[1:], strict=False)
            if after.base_offset > dirty and each.first_timestamp_ms > 0
        ),
        default=LONG_MAX,
    )
    return max(0, now_ms - max(lag_ms, 0) - oldest)


def dirtiest(plans: Iterable[tuple[LogConfig, LogPlan]]) -> int | None:
    """Return the index of the plan with the highest dirty ratio among those that are due; None if no plan is
    due.
    """
    best = None
    ratio = -1.0
    for index, (config, plan) in enumerate(plans):
        if plan.is_due(config) and plan.dirty_ratio > ratio:
            best, ratio = index, plan.dirty_ratio
    return best


def group_segments(
    segments: Sequence[SegmentView], end_offset: int, segment_bytes: int, index_bytes: int
) -> list[tuple[int, int]]:
    """Divide segments into groups. A pass replaces each group by one segment. Returns (base offset of the
    group's first segment, end offset of its last segment) for each group.

    `segments` are the segments to clean, in order. `end_offset` is the base offset of the segment that
    follows them. The segments of a group have together at most `segment_bytes` of records and `index_bytes`
    of index. A single larger segment makes a group of its own. A group's range of offsets fits into an index.
    A group has at most `GROUP_SEGMENTS_MAX` segments.
    """
    groups: list[tuple[int, int]] = []
    ends = [*(each.base_offset for each in segments[1:]), end_offset]
    first = size = indexes = count = 0
    for segment, end in zip(segments, ends, strict=True):
        if (
            groups
            and size + segment.size <= segment_bytes
            and indexes + segment.index_bytes <= index_bytes
            and end - first <= OFFSET_RANGE_MAX
            and count < GROUP_SEGMENTS_MAX
        ):
            groups[-1] = (first, end)
        else:
            first, size, indexes, count = segment.base_offset, 0, 0, 0
            groups.append((first, end))
        size += segment.size
        indexes += segment.index_bytes
        count += 1
    return groups
