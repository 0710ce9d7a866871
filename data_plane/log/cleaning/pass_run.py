"""Runs a cleaning pass over one log: lets the companion process fill the offset map and clean groups of segments,
checks the disk's room, swaps. PORTED.

The event loop plans the pass and swaps the segments. Workers read and write files. They also wait for the
companion process, which runs the record loop (`RecordLoop`). `data_plane/log/parts/README.md` prescribes the
order of the steps.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import attrs

from odradek.data_plane.log.cleaning.log_views import view_of
from odradek.data_plane.log.cleaning.pass_values import (
    Cleaned,
    LastBatches,
    Mapped,
    OffsetMapTooSmall,
    PassRules,
)
from odradek.data_plane.log.cleaning.plan import LogPlan, SegmentView, group_segments
from odradek.data_plane.log.cleaning_pass import Cleaning, Group, Source, begin_cleaning, cleanable_end
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.parts.cleaned_segment import CleanedSegment
from odradek.data_plane.log.parts.cleaning_state import PassReport
from odradek.data_plane.log.segments.aborted_index import AbortedTransaction
from odradek.env.agreed_clock import AgreedClock
from odradek.env.ports import Clock, CompanionFailed, CompanionLost, DiskError, Workers
from odradek.named_states import reached
from odradek.wire.batches.batch_errors import CorruptBatch, InvalidRecord
from odradek.wire.batches.batch_header import BatchHeader
from odradek.wire.errors import KafkaError

ROOM_SPARE_BYTES = 16 << 20
"""The space in bytes that a pass leaves free on a disk, beyond the size of its next segment."""
_EXPECTED = (
    CorruptBatch,
    InvalidRecord,
    KafkaError,
    OffsetMapTooSmall,
    CompanionFailed,
    CompanionLost,
    DiskError,
    MemoryError,
    AssertionError,
)
"""The errors that a call of the record loop is expected to raise."""


class Loop(Protocol):
    """The interface of a `RecordLoop` that runs in a companion process."""

    def call(self, method: str, *args: Any) -> Any: ...


@attrs.frozen
class PassSettings:
    """The settings of a pass. Sizes are in bytes."""

    secret: bytes
    dedupe_bytes: int
    load_factor: float
    io_buffer_bytes: int


class NoRoom(Exception):
    """Raised if the disk has less free space than the next cleaned segment may take."""


@attrs.define
class PassRun:
    """The run of one pass over one log; call `run` once."""

    log: PartitionLog
    plan: LogPlan
    settings: PassSettings
    loop: Loop
    workers: Workers
    clock: Clock
    agreed_clock: AgreedClock
    throttle: Callable[[int, Callable[[], bool]], Awaitable[None]]
    """A function (size, is_over) that waits until `size` more bytes may be read or written. It returns early
    if `is_over` returns True, because the pass has ended.
    """
    free_bytes: Callable[[], int]
    """A function that returns the last measurement of the disk's free space, in bytes."""
    _mapped: Mapped = attrs.field(factory=Mapped, init=False)
    _records_read: int = attrs.field(default=0, init=False)
    _records_kept: int = attrs.field(default=0, init=False)
    _keyless: int = attrs.field(default=0, init=False)
    _is_changed: bool = attrs.field(default=False, init=False)
    """True if the cleaned segment that is being written differs from its source."""
    _aborted: dict[int, AbortedTransaction] = attrs.field(factory=dict, init=False)
    """The log's aborted transactions, by the offsets of their markers."""
    _abort_markers: list[int] = attrs.field(factory=list, init=False)
    """Offsets of abort markers in the segment that is being written: only those whose transactions may still
    have records for readers.
    """

    async def run(self) -> PassReport | None:
        """Clean the log as planned. Returns None if the pass was aborted, or if nothing could be cleaned.

        Raises:
            NoRoom: the disk is too full; some groups may have been cleaned.
            CorruptBatch, InvalidRecord, KafkaError, OffsetMapTooSmall, CompanionFailed: the log cannot be
                cleaned.
            CleaningAborted, FileClosed: the log was truncated, closed or given another policy meanwhile.
            DiskError, CompanionLost, MemoryError
        """
        log, run = self.log, self.workers.run
        started = self.clock.monotonic()
        truncations = log.durability.truncations
        if log.recovery_point < self.plan.end_offset:
            await run(log.flush)
        if log.durability.truncations != truncations:
            reached("cleaner.plan_outdated")
            # Segments may have changed since the plan was made, so the plan's end may lie within a segment now.
            return None
        end_offset = min(self.plan.end_offset, cleanable_end(log))
        if log.home.is_closed or not log.config.is_compacted or end_offset <= self.plan.first_dirty_offset:
            return None
        cleaning = begin_cleaning(log, end_offset)
        try:
            rules = await self._map(cleaning)
            if rules is None or not await self._clean(cleaning, rules):
                return None
            cleaning.complete(rules.map_end)
            return PassReport(
                ended_ms=self.clock.wall_ms(),
                seconds=self.clock.monotonic() - started,
                bytes_before=cleaning.bytes_before,
                bytes_after=cleaning.bytes_after,
                records_read=self._records_read,
                records_kept=self._records_kept,
                keyless_records=self._keyless,
            )
        finally:
            cleaning.end()

    # -- the map

    async def _map(self, cleaning: Cleaning) -> PassRules | None:
        """Fill the map with the keys of the dirty part. Returns None if there are no records, or if the pass
        was aborted.
        """
        log, settings = self.log, self.settings
        first = self.plan.first_dirty_offset
        self._aborted = {
            each.last_offset: each
            for each in log.aborted_transactions(log.log_start_offset, cleaning.end_offset)
        }
        await self._call(
            "begin",
            settings.secret,
            settings.dedupe_bytes,
            settings.load_factor,
            log.config.decompressed_bytes_max,
            cleaning.end_offset - first,
            tuple(each[:3] for each in self._aborted.values()),
        )
        map_end = first
        for base_offset, end_offset in self._dirty_segments(cleaning.end_offset):
            group = cleaning.take_group(base_offset, end_offset)
            if group is None:
                continue
            try:
                map_end = await self._map_segment(cleaning, group, end_offset, map_end)
            finally:
                group.release()
            if self._mapped.is_full:
                reached("cleaner.map_full")
                break
            # Compaction may have removed a segment's last records. Their offsets count as clean as well.
            map_end = max(map_end, end_offset)
        if map_end <= first or cleaning.abort_reason is not None:
            return None
        now = self.agreed_clock.moment()
        return PassRules(
            earliest_ms=now.earliest_ms,
            latest_ms=now.latest_ms,
            delete_retention_ms=log.config.delete_retention_ms,
            map_end=map_end,
            last_batches=LastBatches.of(log.load_producers(), log.high_watermark),
        )

    def _dirty_segments(self, end_offset: int) -> list[tuple[int, int]]:
        views = self._segments(end_offset)
        ends = [*(each.base_offset for each in views[1:]), end_offset]
        return [
            (each.base_offset, end)
            for each, end in zip(views, ends, strict=True)
            if end > self.plan.first_dirty_offset
        ]

    def _segments(self, end_offset: int) -> list[SegmentView]:
        return [each for each in view_of(self.log).segments if each.base_offset < end_offset]

    async def _map_segment(self, cleaning: Cleaning, group: Group, end_offset: int, map_end: int) -> int:
        """Put the keys of one segment, which ends at `end_offset`, into the map. Returns the new end of the
        mapped offsets.
        """
        source, first = group.sources[0], self.plan.first_dirty_offset
        offsets = range(source.base_offset, end_offset)
        position = await self._begin_of(group, first) if source.base_offset < first else 0
        while position < source.size:
            mapped: Mapped = await self._call(
                "map_records",
                source.file,
                position,
                source.size,
                self.settings.io_buffer_bytes,
                offsets,
                first,
            )
            self._mapped = mapped
            self._keyless += mapped.keyless
            map_end = max(map_end, mapped.next_offset)
            position += mapped.bytes_read
            offsets = range(max(offsets.start, mapped.next_offset), end_offset)
            await self.throttle(mapped.bytes_read, cleaning.is_over)
            if cleaning.is_over() or mapped.is_full:
                break
        return map_end

    async def _begin_of(self, group: Group, offset: int) -> int:
        """Return the position of an offset in the first segment of a group."""
        segment, file = group.segments[0], group.sources[0].file
        interval = self.log.config.index_interval_bytes
        position, _ = await self.workers.run(segment.position_of, offset, file, interval)
        return position

    # -- the groups

    async def _clean(self, cleaning: Cleaning, rules: PassRules) -> bool:
        """Clean all groups of segments. Returns False if the pass was aborted before the last one."""
        log = self.log
        await self._call("rewrite_by", rules)
        views = self._segments(cleaning.end_offset)
        wanted = [each for each in views if each.base_offset < rules.map_end]
        end_offset = views[len(wanted)].base_offset if len(wanted) < len(views) else cleaning.end_offset
        config = log.config
        for base_offset, group_end in group_segments(
            wanted, end_offset, config.segment_bytes, config.segment_index_bytes
        ):
            group = cleaning.take_group(base_offset, group_end)
            if group is None:
                if cleaning.abort_reason is not None:
                    return False
                continue
            try:
                if not await self._clean_group(cleaning, group, group_end):
                    return False
            finally:
                group.release()
        return cleaning.abort_reason is None

    async def _clean_group(self, cleaning: Cleaning, group: Group, group_end: int) -> bool:
        """Clean one group, which ends at `group_end`, and swap the new segment in. Returns False if the pass
        is over.
        """
        run = self.workers.run
        size = sum(source.size for source in group.sources)
        if self.free_bytes() < size + ROOM_SPARE_BYTES:
            reached("cleaner.no_room")
            raise NoRoom(
                f"a cleaned segment may take {size} bytes, and the disk has only {self.free_bytes()} free"
            )
        cleaned = await run(cleaning.begin_segment, group)
        try:
            last = None
            self._abort_markers.clear()
            self._is_changed = len(group.sources) > 1
            ends = [*group.source_bases[1:], group_end]
            for source, end_offset in zip(group.sources, ends, strict=True):
                last = await self._clean_source(cleaning, cleaned, source, end_offset) or last
            if not self._is_changed:
                reached("cleaner.segment_left_as_it_was")
                cleaning.note_unchanged(size)
                await run(cleaned.discard)
                return cleaning.abort_reason is None
            kept = [self._aborted[each] for each in sorted(self._abort_markers) if each in self._aborted]
            await run(cleaned.finish, last, kept)
            is_done = cleaning.swap(group, cleaned)
        except BaseException:
            await self._discard(cleaned)
            raise
        if not is_done:
            await self._discard(cleaned)
            return cleaning.abort_reason is None
        # Close the source files before `settle` removes them. The last close of a removed file frees its
        # space on the disk. That may take long, so the loop must not do it.
        group.release()
        await run(cleaning.settle)
        return True

    async def _clean_source(
        self, cleaning: Cleaning, cleaned: CleanedSegment, source: Source, end_offset: int
    ) -> BatchHeader | None:
        """Append the remaining records of one segment, which ends at `end_offset`, to the cleaned segment.
        Returns the header of the last batch read.
        """
        position, last = 0, None
        offsets = range(source.base_offset, end_offset)
        while position < source.size:
            part: Cleaned = await self._call(
                "clean", source.file, position, source.size, self.settings.io_buffer_bytes, offsets
            )
            position += part.bytes_read
            last = BatchHeader(*part.last_header)
            offsets = range(last.next_offset, end_offset)
            self._records_read += part.records_read
            self._records_kept += part.records_kept
            self._is_changed |= part.is_changed
            self._abort_markers += part.abort_markers
            if part.data:
                await self.workers.run(cleaned.append, part.data)
            await self.throttle(part.bytes_read + len(part.data), cleaning.is_over)
        return last

    async def _discard(self, cleaned: CleanedSegment) -> None:
        """Remove the cleaned files that the pass has written. If this task is cancelled first, the next start
        of the node removes them.
        """
        await self.workers.run(cleaned.discard)

    async def _call(self, method: str, *args: Any) -> Any:
        """Call a method of the record loop in the companion process. Turns an unexpected error into
        `CompanionFailed`, so that it does not end the node. A stored batch that causes such an error would
        cause it again after each start.
        """
        try:
            return await self.workers.run(self.loop.call, method, *args)
        except _EXPECTED:
            raise
        except Exception as error:  # a companion may raise any type of error
            places = "; ".join(getattr(error, "__notes__", ()))
            raise CompanionFailed(f"{type(error).__name__}: {error} ({places})") from error
