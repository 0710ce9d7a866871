"""The upkeep of one log directory, once a second: flushes, retention, expiry of producers, checkpoints,
measured free space, removal of files. PORTED.

Work that waits for the device runs in a worker. A log may be deleted, truncated or closed at any time: before
a worker begins, while it works, and before the loop gets the result. So the loop checks the log again after
every wait. A worker that finds its files closed or removed ends its work. A worker that writes values of many
logs to one file reads the values itself, so that they are up to date.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, Protocol

import attrs

from odradek.data_plane.log.directory.checkpoints import CLEANER_FILE, HIGH_WATERMARK_FILE
from odradek.data_plane.log.directory.log_names import LogNames, Rename
from odradek.data_plane.log.directory.log_starts import LogStarts
from odradek.data_plane.log.directory.offset_checkpoints import OffsetCheckpoints
from odradek.data_plane.log.directory.room import Room
from odradek.data_plane.log.directory.watched_workers import WatchedWorkers
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.retention import look_at_ages, needs_look
from odradek.data_plane.log.segments.small_files import remove_if_present
from odradek.data_plane.log.segments.walked_times import WalkBudget
from odradek.env.agreed_clock import AgreedClock
from odradek.env.ports import (
    Clock,
    Dir,
    DiskError,
    DiskFull,
    DiskRefused,
    FileClosed,
    FileMissing,
    Log,
    Workers,
    never,
)
from odradek.metadata_quorum.config.typed_settings import setting
from odradek.named_states import reached
from odradek.wire.topic_partition import TopicPartition

_TICK_SECONDS = 1.0
_SHORT_RETENTION_MS = 10_000
"""The interval between two runs of retention, in milliseconds, while only the reserve of the disk is left."""
_WALK_BYTES = 512 << 20
"""The most bytes that one upkeep turn reads to determine the ages of records. A worker needs one or two
seconds for them.
"""


@attrs.frozen(kw_only=True)
class UpkeepContext:
    """The settings and ports that the upkeep of a log directory needs."""

    clock: Clock
    workers: Workers
    log: Log
    """A structlog-like logger."""
    random: Random
    producer_id_expiration_ms: int = setting("producer.id.expiration.ms")
    producer_id_expiration_check_interval_ms: int = setting("producer.id.expiration.check.interval.ms")
    retention_check_interval_ms: int = setting("log.retention.check.interval.ms")
    checkpoint_interval_ms: int = setting("log.flush.offset.checkpoint.interval.ms")
    """The interval in milliseconds at which recovery points and log start offsets are written."""
    high_watermark_checkpoint_interval_ms: int = setting("replica.high.watermark.checkpoint.interval.ms")
    flush_cycle_ms: int = 60_000
    """The time in milliseconds in which every log with unsynced data is flushed once, so that recovery stays
    short.
    """
    unsynced_bytes_max: int = 1 << 30
    """The most bytes that the last segments of all logs together leave unsynced for longer than a second (-1: no
    limit). After a crash, recovery reads the whole last segment of each log that has such bytes.
    """
    space_interval_ms: int = 10_000
    """The interval in milliseconds at which the device's free space is measured."""
    reserve_bytes: int = -1
    """The free space in bytes that records must not use. If it is negative, a hundredth of the device is kept
    free, but at most 1 GiB.
    """
    buggify: Callable[[str], bool] = never
    index_idle_ms: int = 600_000
    """The time in milliseconds after which unused indexes are dropped from memory."""
    agreed_clock: AgreedClock = attrs.field()
    """The clock on which all nodes agree. The ages of records are computed from it."""

    @agreed_clock.default
    def _own_clock(self) -> AgreedClock:
        return AgreedClock(self.clock, self.retention_check_interval_ms, self.log)


class LookedAfter(Protocol):
    """The interface of the log directory that its upkeep uses."""

    directory: Dir
    logs: dict[TopicPartition, PartitionLog]
    checkpoints: OffsetCheckpoints
    names: LogNames
    workers: WatchedWorkers
    flush_failure: DiskError | None
    """The error of a flush in a worker. The next turn takes the directory offline because of it."""
    full_since: float | None
    is_stalled: bool
    room: Room

    @property
    def is_suspected(self) -> bool:
        """True while a call to the device is late, so that the loop must wait for the device."""

    @property
    def context(self) -> UpkeepContext: ...

    @property
    def is_served(self) -> bool: ...

    def disk_failed(self, error: DiskError) -> None: ...

    def disk_refused(self, error: DiskRefused) -> None: ...

    def device_answers(self) -> None: ...

    def measure_space(self) -> None: ...

    def judge_room(self) -> None: ...

    def note_sync(self, seconds: float) -> None: ...

    def start_stored(self, log: PartitionLog, offset: int) -> None: ...


class Background:
    """Runs the tasks that maintain one log directory, and remembers when each task is due. Times are
    monotonic milliseconds.
    """

    def __init__(self, log_dir: LookedAfter) -> None:
        self._log_dir = log_dir
        self._doomed_files: deque[tuple[int, Dir, list[str]]] = deque()
        self._doomed_trees: list[tuple[int, str]] = []
        self._rolled: dict[TopicPartition, None] = {}
        self._round: deque[TopicPartition] = deque()
        self._due: dict[str, int] = {}
        self.entry_is_dirty = False
        """True if directories have been renamed since the log directory was last synced."""
        self.log_starts = LogStarts(log_dir, log_dir.checkpoints.log_start_text, self._write)
        self.wants_descriptors = False
        """True if the process is out of descriptors.

        The next turn then closes the files of all segments that have no readers.
        """
        self._logged_postponed = False
        """True once the current turn has logged that a flush was refused."""
        self._retention_is_unfinished = False
        """True if retention had too little time to learn the ages of all records; the next turn continues."""
        self.flush_count = 0
        self.segments_removed = 0

    # --- requests of other parts

    def remove_files_at(self, directory: Dir, names: list[str], due_ms: int) -> None:
        self._doomed_files.append((due_ms, directory, names))

    def remove_tree_at(self, name: str, due_ms: int) -> None:
        self._doomed_trees.append((due_ms, name))

    def flush_soon(self, topic: str, partition: int) -> None:
        """Flush a finished segment of this log in the next turn, as Kafka does after every roll."""
        self._rolled[TopicPartition(topic, partition)] = None

    # --- the loop

    async def run(self) -> None:
        log_dir = self._log_dir
        clock = log_dir.context.clock
        wake = clock.monotonic()
        try:
            while log_dir.is_served:
                wake = max(wake + _TICK_SECONDS, clock.monotonic())
                await clock.sleep_until(wake)
                if log_dir.is_served:
                    await self.look(int(clock.monotonic() * 1000))
        except DiskError as error:
            log_dir.disk_failed(error)

    async def look(self, now_ms: int) -> None:
        """Run all tasks that are due. If it raises `DiskError`, the caller takes the directory offline."""
        context, checkpoints = self._log_dir.context, self._log_dir.checkpoints
        if self._log_dir.flush_failure is not None:
            raise self._log_dir.flush_failure
        if self._log_dir.is_suspected:
            await self._log_dir.workers.run(self._log_dir.directory.settle)
            self._log_dir.device_answers()
        self._logged_postponed = False
        context.agreed_clock.observe()
        if self.wants_descriptors:
            self._give_up_descriptors()
        if context.buggify("log.early_roll"):
            self._roll_early()
        await self._flush(now_ms)
        if self._retention_is_due(now_ms):
            await self._apply_retention()
        if self._is_due("producers", context.producer_id_expiration_check_interval_ms, now_ms):
            self._expire_producers(now_ms)
        if self._is_due("indexes", context.index_idle_ms, now_ms):
            self._drop_idle_indexes()
        if self._is_due("high_watermark", context.high_watermark_checkpoint_interval_ms, now_ms):
            await self._write(HIGH_WATERMARK_FILE, checkpoints.high_watermark_text, durable=False)
        checkpoints_are_due = self._is_due("checkpoints", context.checkpoint_interval_ms, now_ms)
        if checkpoints_are_due:
            await self._write_recovery_points()
        if checkpoints_are_due or self.log_starts.is_wanted:
            await self.log_starts.store()
        if checkpoints.cleaner_offsets_moved:
            checkpoints.cleaner_offsets_moved = False
            await self._write(CLEANER_FILE, checkpoints.first_dirty_text)
        measures_often = self._log_dir.full_since is not None or self._log_dir.room.is_near
        if self._is_due("space", context.space_interval_ms, now_ms) or measures_often:
            await self._log_dir.workers.run(self._log_dir.measure_space)
            self._log_dir.judge_room()
        await self._remove_doomed(now_ms)

    def _give_up_descriptors(self) -> None:
        self.wants_descriptors = False
        for log in self._log_dir.logs.values():
            if not log.is_closed:
                for segment in log.segments:
                    segment.file.rest()

    def _roll_early(self) -> None:
        """Roll each log's active segment, as if it were full."""
        for log in self._log_dir.logs.values():
            if not log.offline and not log.is_closed:
                with suppress(DiskRefused):
                    log.roll(self._log_dir.context.clock.wall_ms())

    def _retention_is_due(self, now_ms: int) -> bool:
        """True if old segments should be removed now. This is more often the case while only the reserve of the
        disk is left.
        """
        is_due = self._is_due("retention", self._log_dir.context.retention_check_interval_ms, now_ms)
        often = self._is_due("retention_when_short", _SHORT_RETENTION_MS, now_ms)
        return is_due or self._retention_is_unfinished or (often and self._log_dir.room.is_short)

    def _is_due(self, task: str, interval_ms: int, now_ms: int) -> bool:
        """True if the task is due: once per interval. Its first run is one interval after the start."""
        due = self._due.setdefault(task, now_ms + interval_ms)
        if now_ms < due:
            return False
        self._due[task] = now_ms + interval_ms
        return True

    # --- flushing

    async def _flush(self, now_ms: int) -> None:
        """Flush logs of three kinds: logs that have finished a segment, logs that are due by `flush.ms`, and
        a share of all logs. A later turn flushes the next share, so that each log has its turn within
        `flush_cycle_ms`.
        """
        log_dir = self._log_dir
        rolled, self._rolled = self._rolled, {}
        for key in rolled:
            finished = log_dir.logs.get(key)
            if finished is not None:
                await self._flush_log(finished, now_ms)
        for log in list(log_dir.logs.values()):
            if now_ms - log.durability.last_flush_ms >= log.config.flush_ms and log.has_unsynced:
                await self._flush_log(log, now_ms)
        if not self._round:
            self._round.extend(log_dir.logs)
        cycle_ms = max(log_dir.context.flush_cycle_ms, 1)
        share = -(-len(log_dir.logs) * int(_TICK_SECONDS * 1000) // cycle_ms)
        for _ in range(min(share, len(self._round))):
            due = log_dir.logs.get(self._round.popleft())
            if due is None or not due.has_unsynced:
                continue
            # Compare with three quarters of a cycle, because turns are not exactly one cycle apart. With a
            # whole cycle, a log whose turn came a little early would wait for another cycle.
            if now_ms - due.durability.last_flush_ms >= cycle_ms * 3 // 4:
                await self._flush_log(due, now_ms)

        await self._bound_unsynced(now_ms)

    async def _bound_unsynced(self, now_ms: int) -> None:
        """Flush the logs with the most unsynced bytes, if all logs together have too many, until half are left."""
        log_dir = self._log_dir
        limit = log_dir.context.unsynced_bytes_max
        if limit < 0:
            return
        unsynced = [(log.unsynced_bytes, key) for key, log in log_dir.logs.items() if log.has_unsynced]
        total = sum(size for size, _ in unsynced)
        if total <= limit:
            return
        reached("log.unsynced_bytes_bounded")
        for size, key in sorted(unsynced, reverse=True):
            log = log_dir.logs.get(key)
            if log is not None and log.has_unsynced:
                await self._flush_log(log, now_ms)
            total -= size
            if total <= limit // 2:
                break

    async def _flush_log(self, log: PartitionLog, now_ms: int) -> None:
        log.durability.note_flush(now_ms)
        last = log.active.base_offset, log.active.size
        self.flush_count += 1
        clock = self._log_dir.context.clock
        began_at = clock.monotonic()
        try:
            await self._log_dir.workers.run(log.flush)
            self._log_dir.note_sync(clock.monotonic() - began_at)
            log.durability.note_synced(last)
            log.durability.check_end(log.log_end_offset)
        except DiskRefused as error:
            if error.operation == "sync":
                # A failed sync is final, even if only room was lacking, because the kernel may have dropped the
                # unsynced pages.
                raise
            reached("log.flush_postponed")
            self._log_dir.disk_refused(error)
            if not self._logged_postponed:
                self._logged_postponed = True
                self._log_dir.context.log.warning("log.flush_postponed", topic=log.topic, reason=str(error))

    # --- the other tasks

    async def _apply_retention(self) -> None:
        context = self._log_dir.context
        budget = WalkBudget(_WALK_BYTES)
        self._retention_is_unfinished = False
        for log in list(self._log_dir.logs.values()):
            if log.offline:
                continue
            try:
                if any(segment.needs_index for segment in log.segments):
                    await self._log_dir.workers.run_long(_load_indexes, log)
                now_ms = context.agreed_clock.earliest_ms()
                segments, config = log.segment_list, log.config
                if not log.is_closed and needs_look(log, segments, config, now_ms):
                    is_finished = await self._log_dir.workers.run_long(
                        look_at_ages, log, segments, config, now_ms, budget
                    )
                    self._retention_is_unfinished |= not is_finished
                if log.offline or not self._log_dir.is_served:
                    continue
                if not log.prepare_retention(context.agreed_clock.earliest_ms()):
                    continue
                await self._flush_log(log, log.durability.last_flush_ms)
                removed = 0 if log.offline else log.delete_old_segments(context.agreed_clock.earliest_ms())
            except (DiskRefused, FileClosed):
                continue
            if removed:
                self.log_starts.want()
                self.segments_removed += removed
                context.log.info(
                    "log.segments_removed",
                    topic=log.topic,
                    partition=log.partition,
                    segments=removed,
                    log_start_offset=log.log_start_offset,
                )

    def _expire_producers(self, now_ms: int) -> None:
        context = self._log_dir.context
        for log in self._log_dir.logs.values():
            if log.home.is_stalled:
                # Skip a stalled log, because the disk's thread may be writing the snapshot of its producers at
                # this moment.
                continue
            log.producers.expire(now_ms, context.producer_id_expiration_ms)

    def _drop_idle_indexes(self) -> None:
        for log in self._log_dir.logs.values():
            if not log.offline:
                for segment in log.segments[:-1]:
                    segment.grow_idle()

    async def _write(self, name: str, offsets: Callable[[], bytes], *, durable: bool = True) -> bool:
        """Replace a checkpoint, unless the file has the same text already. Returns True if the file has the
        present offsets now.

        If the disk refuses the write, the old file stays, which is safe. The worker that writes the file
        calls `offsets` itself. So logs that were set aside meanwhile are left out.

        The file is synced only if `durable` is true. A sync commits the file system's journal, and meanwhile
        the loop's appends to all logs of that file system wait. An unsynced file survives the death of the
        process. After a power failure the file may be old, incomplete or missing.
        """
        try:
            return await self._log_dir.workers.run(self._replace, name, offsets, durable)
        except DiskRefused as error:
            self._log_dir.disk_refused(error)
            return False

    def _replace(self, name: str, offsets: Callable[[], bytes], durable: bool) -> bool:
        log_dir = self._log_dir
        return log_dir.checkpoints.replace(name, offsets, lambda: log_dir.is_served, durable=durable)

    async def _write_recovery_points(self) -> None:
        try:
            await self._log_dir.workers.run(self._log_dir.checkpoints.write_recovery_points)
        except DiskRefused as error:
            self._log_dir.disk_refused(error)

    async def _rename_refused(self) -> None:
        """Retry the renames that a full disk has refused. If a rename is refused again, but its log may be
        removed, the log is removed at once, which frees space.
        """
        log_dir = self._log_dir
        for refused in log_dir.names.refused:
            try:
                await log_dir.workers.run_long(_rename_or_remove, log_dir.directory, refused)
            except DiskRefused:
                continue
            log_dir.names.end_refused(refused)

    async def _remove_doomed(self, now_ms: int) -> None:
        workers = self._log_dir.workers
        if self._log_dir.is_suspected:
            reached("log.removal_put_off")
            # Remove nothing now, because a late change may still be working on these files.
            return
        await self._rename_refused()
        if self.entry_is_dirty:
            self.entry_is_dirty = False
            try:
                await workers.run(self._log_dir.directory.sync)
            except DiskRefused:
                self.entry_is_dirty = True
        files = [doomed for doomed in self._doomed_files if doomed[0] <= now_ms]
        if files:
            self._doomed_files = deque(doomed for doomed in self._doomed_files if doomed[0] > now_ms)
            for doomed in files:
                try:
                    # Remove files one by one, so that each call returns soon. A call that takes long means that the disk hangs.
                    for file in doomed[2]:
                        await workers.run(remove_if_present, doomed[1], file)
                except DiskRefused:
                    self._doomed_files.append(doomed)
        trees = [doomed for doomed in self._doomed_trees if doomed[0] <= now_ms]
        if trees:
            self._doomed_trees = [doomed for doomed in self._doomed_trees if doomed[0] > now_ms]
            for due_ms, name in trees:
                try:
                    await workers.run_long(_remove_tree, self._log_dir.directory, name)
                except DiskRefused:
                    self._doomed_trees.append((due_ms, name))

    def statistics(self) -> dict[str, Any]:
        return {
            "flushes": self.flush_count,
            "segments_removed": self.segments_removed,
            "files_to_remove": sum(len(names) for _, _, names in self._doomed_files),
            "directories_to_remove": len(self._doomed_trees),
        }


def _load_indexes(log: PartitionLog) -> None:
    """Read the indexes of segments whose newest timestamp retention needs.

    Raises `FileClosed` if segments, or the log, were removed meanwhile, and `DiskError`.
    """
    for segment in log.segments:
        segment.newest_timestamp_ms(log.config.index_interval_bytes)


def _rename_or_remove(directory: Dir, refused: Rename) -> None:
    try:
        directory.rename(refused.name, refused.renamed)
    except FileMissing:
        return
    except DiskFull:
        if not refused.may_remove:
            raise
        _remove_tree(directory, refused.name)


def _remove_tree(directory: Dir, name: str) -> None:
    try:
        directory.remove_tree(name)
    except FileMissing:
        return
