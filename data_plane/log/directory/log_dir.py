"""A log directory: one disk's worth of partition logs, and the tasks that keep it in order.

Theory of operation
-------------------
Each directory has its own checkpoints and its own background loop, so a disk that hangs stalls only its own
partitions. What waits for the device (syncs, loading, removing files) runs in workers; the loop itself changes
logs only between those.

Rules
* The recovery-point checkpoint never says more than has been synced. When a truncation lowers a recovery point,
  the checkpoint is rewritten before anything is cut.
* A failed operation other than a full disk is final: the directory goes offline, once, and nothing is retried.
* The clean-shutdown marker is removed as soon as it has been read.
* What is not a partition's directory by name is left alone; so are `-stray` directories. `-delete` ones, left by a
  deletion that a restart interrupted, are removed. `-future` ones belong to `future_logs`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

import attrs

from data_plane.log.directory.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    Offsets,
    encode_clean_shutdown,
    encode_offsets,
    read_offsets,
    take_clean_shutdown,
)
from data_plane.log.directory.log_dir_background import Background, UpkeepContext
from data_plane.log.directory.log_starts import RisingStarts
from data_plane.log.directory.room import ALARM_HOURS, Room
from data_plane.log.directory.sync_latency import SyncLatency
from data_plane.log.directory.watched_workers import WatchedWorkers
from data_plane.log.loading import LoadingStopped, LoadOptions, open_partition_log, write_topic_id
from data_plane.log.log_config import LogConfig
from data_plane.log.partition_log import PartitionLog
from data_plane.log.parts.cleaning_state import NEVER_CLEANED
from data_plane.log.parts.leader_epochs import MalformedCheckpoint
from data_plane.log.segments.scan import RECOVERY_CHUNK_BYTES
from data_plane.log.segments.segment import remove_if_present
from metadata_quorum.replica.meta_properties import read_meta_properties
from odradek.env.ports import (
    Dir,
    DiskError,
    DiskFull,
    DiskHung,
    DiskRefused,
    Event,
    ResourcesShort,
)
from wire.disk_troubles import Trouble
from wire.topic_partition import TopicPartition

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
METADATA_TOPIC = "__cluster_metadata"
_LOGS_PER_LOAD = 32
_LOAD_RETRY_SECONDS = 1.0
_NAME_BYTES_MAX = 255
_PARTITION_NAME = re.compile(r"([a-zA-Z0-9._-]{1,249})-([0-9]{1,10})")


class DiskSpace(NamedTuple):
    """The device of a directory, in bytes: its size, and the room that is left to us."""

    total_bytes: int
    free_bytes: int


@attrs.frozen(kw_only=True)
class LogDirContext(UpkeepContext):
    """Values that all log directories of a node share."""

    random: Random
    on_offline: Callable[[LogDir, str], None] = lambda log_dir, reason: None
    on_start_stored: Callable[[PartitionLog], None] = lambda log: None
    """Called on the loop when the log's start has come to its checkpoint."""


@attrs.define
class _Waiting:
    """What the end of a stall is for: logs to be served again, and directories to be renamed."""

    logs: list[PartitionLog] = attrs.field(factory=list)
    renames: list[tuple[str, str]] = attrs.field(factory=list)


class LogDir:
    """One log directory and the logs in it. Made by `open`; `load` brings its logs in."""

    def __init__(
        self, directory: Dir, context: LogDirContext, config_for: Callable[[str], LogConfig]
    ) -> None:
        self.directory = directory
        self.path = directory.path
        self.context = context
        self.config_for = config_for
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.logs_being_made = 0
        """Logs that workers make now. They count when new logs are spread over directories."""
        self.offline_reason: str | None = None
        self.is_released = False
        """True once the node has let go of the directory, because its disk is to be pulled."""
        self.clean_shutdown_broker_epoch: int | None = None
        """The broker epoch in the clean-shutdown marker: None after a crash, -1 if the marker has no valid one."""
        meta = read_meta_properties(directory)
        self.cluster_id = meta.cluster_id
        self.node_id = meta.node_id
        self.directory_id = meta.directory_id
        self.high_watermarks: Offsets = {}
        """High watermarks as of the last start, for partitions that are created again or not loaded yet."""
        self._gone: set[TopicPartition] = set()
        """Logs that were set aside, and may still be in the checkpoints."""
        self._recovery_points: Offsets = {}
        self._log_starts: Offsets = {}
        self._first_dirty: Offsets = {}
        self.is_loaded = False
        """True once all logs are open."""
        self._is_closed = False
        self._is_stopping = False
        self.small_files = threading.Lock()
        """Held while a checkpoint is written, by one writer at a time."""
        self._entry_is_dirty = True
        """Logs have been created since the directory was last synced."""
        self.flush_failure: DiskError | None = None
        self.space = DiskSpace(-1, -1)
        """The room as of the last look. To ask the device itself may block."""
        self.room = Room(context.reserve_bytes)
        self.latency = SyncLatency()
        self.errors = 0
        """Failed or refused operations since the start."""
        self._is_alarmed = False
        """True after the operator has been told that the disk will soon be full."""
        self.workers = WatchedWorkers(lambda: self.context.workers, context.clock)
        self.trouble: Trouble | None = None
        """The reason for which its replicas should not lead, as `data_plane.disks.disk_watch` judges it."""
        self.trouble_since_ms = 0
        """The beginning of the trouble, by the wall clock."""
        self.full_since: float | None = None
        """Monotonic seconds at which a write found no room; None again once there is enough of it."""
        self.refused_at = 0.0
        """Monotonic seconds of the last write that found no room."""
        self.is_stalled = False
        """True while the logs refuse appends and reads, until the device answers (`data_plane.disks.disk_watch`)."""
        self.is_suspected = False
        """True from a write that the device has not answered in time until it has. The logs are stalled meanwhile."""
        self._waiting = _Waiting()
        self.background = Background(self)

    @classmethod
    def open(
        cls, directory: Dir, context: LogDirContext, *, config_for: Callable[[str], LogConfig]
    ) -> LogDir:
        """Lock the directory and read its small files (blocking).

        Raises:
            NotALogDirectory: it has not been formatted.
            DiskError: also when another process holds the directory.
        """
        log_dir = cls(directory, context, config_for)
        directory.lock()
        log_dir.clean_shutdown_broker_epoch = take_clean_shutdown(directory)
        log_dir._recovery_points = log_dir._read_offsets(RECOVERY_POINT_FILE)
        log_dir._log_starts = log_dir._read_offsets(LOG_START_FILE)
        log_dir._first_dirty = log_dir._read_offsets(CLEANER_FILE)
        log_dir.high_watermarks = log_dir._read_offsets(HIGH_WATERMARK_FILE)
        log_dir.measure_space()
        return log_dir

    def _read_offsets(self, name: str) -> Offsets:
        try:
            return read_offsets(self.directory, name)
        except MalformedCheckpoint as error:
            # Without a checkpoint more is recovered than needed, and nothing is lost.
            self.context.log.warning(
                "log_dir.checkpoint_unreadable", directory=self.path, file=name, error=str(error)
            )
            return {}

    # --- loading

    async def load(self) -> None:
        """Open every log, recovering them unless the last shutdown was clean. An error takes the directory offline.

        Returns early after `stop_loading`. The directory can only be closed then.
        """
        run = self.workers.run_long
        try:
            names = await run(self.directory.list)
            partitions = []
            for name in names:
                key = parse_partition_name(name)
                if key is not None and key.topic != METADATA_TOPIC and self.directory.is_dir(name):
                    partitions.append((name, key))
                elif name.endswith(DELETE_SUFFIX):
                    self.background.remove_tree_at(name, 0)
                elif name.endswith(STRAY_SUFFIX):
                    self.context.log.warning("log_dir.stray", directory=self.path, name=name)
            buffer = bytearray(0 if self.clean_shutdown_broker_epoch is not None else RECOVERY_CHUNK_BYTES)
            for at in range(0, len(partitions), _LOGS_PER_LOAD):
                for log in await self._load_patiently(partitions[at : at + _LOGS_PER_LOAD], buffer):
                    self.logs[log.home.key] = log
            if any(map(self._ends_below_checkpoints, self.logs)):
                await run(self._lower_checkpoints)
        except LoadingStopped:
            return
        except DiskError as error:
            self.disk_failed(error)
            return
        self.judge_room()
        self.is_loaded = True
        known = (*self._recovery_points, *self._log_starts, *self._first_dirty, *self.high_watermarks)
        self._gone.update(key for key in known if key not in self.logs)
        self._recovery_points = {}
        self._log_starts = {}
        self._first_dirty = {}

    def _ends_below_checkpoints(self, key: TopicPartition) -> bool:
        """True if damage was cut off that a checkpoint says to be durable, or clean."""
        log = self.logs[key]
        first_dirty = self._first_dirty.get(key, NEVER_CLEANED)
        return log.recovery_point < self._recovery_points.get(key, 0) or log.first_dirty_offset < first_dirty

    def _lower_checkpoints(self) -> None:
        """Make them say what the logs have, before anything is appended (blocking).

        What comes next would else pass for durable, or for clean, at the start after a crash. On a full disk the
        files go: without them the next start reads all of the logs.

        Raises `DiskError`.
        """
        with self.small_files:
            try:
                self.directory.write_atomic(RECOVERY_POINT_FILE, self.recovery_points())
                if self._first_dirty:
                    self.directory.write_atomic(CLEANER_FILE, self.first_dirty_offsets())
            except DiskRefused:
                remove_if_present(self.directory, RECOVERY_POINT_FILE)
                remove_if_present(self.directory, CLEANER_FILE)
                self.directory.sync()

    async def _load_patiently(
        self, partitions: list[tuple[str, TopicPartition]], buffer: bytearray
    ) -> list[PartitionLog]:
        """Open some logs; try again every second while the process is out of descriptors or memory."""
        clock = self.context.clock
        told = False
        while True:
            try:
                return await self.workers.run_long(self._load_some, partitions, buffer)
            except ResourcesShort as error:
                if not told:
                    self.context.log.error("log_dir.load_waits", directory=self.path, reason=str(error))
                told = True
                await clock.sleep_until(clock.monotonic() + _LOAD_RETRY_SECONDS)

    def stop_loading(self) -> None:
        """Make `load` return soon, because the node stops. Only a device that hangs holds it up."""
        self._is_stopping = True

    def _load_some(
        self, partitions: list[tuple[str, TopicPartition]], buffer: bytearray
    ) -> list[PartitionLog]:
        logs: list[PartitionLog] = []
        try:
            for name, key in partitions:
                if self._is_stopping:
                    raise LoadingStopped
                logs.append(self._load_one(name, key, buffer))
        except ResourcesShort:
            for log in logs:
                log.abandon()
            raise
        return logs

    def _load_one(self, name: str, key: TopicPartition, buffer: bytearray) -> PartitionLog:
        context = self.context
        options = LoadOptions(
            is_clean=self.clean_shutdown_broker_epoch is not None,
            recovery_point=self._recovery_points.get(key, 0),
            is_known=key in self._recovery_points or key in self._first_dirty,
            log_start_offset=self._log_starts.get(key, -1),
            first_dirty_offset=self._first_dirty.get(key, NEVER_CLEANED),
            high_watermark=self.high_watermarks.get(key, -1),
            now_ms=context.clock.wall_ms(),
            random=context.random,
            log=context.log,
            buffer=buffer or None,
            is_stopping=lambda: self._is_stopping,
        )
        directory = self.directory.subdir(name)
        log = open_partition_log(directory, *key, self.config_for(key.topic), self, options)
        # There may be more logs than the process may have descriptors. The first append or read opens the file.
        log.active.file.rest()
        return log

    # --- logs

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        return self.logs.get(TopicPartition(topic, partition))

    def create_log(self, topic: str, partition: int, topic_id: bytes, config: LogConfig) -> PartitionLog:
        """An empty log. Its directory becomes durable with its first flush.

        A log of that name with another topic id is set aside as a stray; one with the same id is returned.

        Raises:
            DiskError: the directory is offline; DiskRefused: there is no room, or no descriptor.
        """
        if self.offline_reason is not None:
            raise DiskError(self.path, f"{topic}-{partition}", "create", 0, "the log directory is offline")
        context = self.context
        existing = self.logs.get(TopicPartition(topic, partition))
        if existing is not None:
            if existing.topic_id == topic_id:
                return existing
            context.log.warning("partition.stray", topic=topic, partition=partition, directory=self.path)
            self.set_stray(topic, partition)
        try:
            log = self.make_log(topic, partition, topic_id, config)
        except DiskError as error:
            self.disk_failed_unless_refused(error)
            raise
        self.adopt(log)
        return log

    def make_log(
        self, topic: str, partition: int, topic_id: bytes, config: LogConfig, now_ms: int | None = None
    ) -> PartitionLog:
        """The files of an empty log (blocking; may run in a worker); `adopt` puts it into service. Raises `DiskError`.

        Logs that are made together share `now_ms`: each keeps it.
        """
        name = f"{topic}-{partition}"
        if any(waiting == name for waiting, _ in self._waiting.renames):
            # The log of a topic that is gone has this name until the device answers: its records are not ours.
            raise DiskHung(self.path, name, "create", 0, "the device does not answer")
        context = self.context
        now_ms = context.clock.wall_ms() if now_ms is None else now_ms
        options = LoadOptions(is_clean=True, now_ms=now_ms, random=context.random, log=context.log)
        self.forget_gone(TopicPartition(topic, partition))
        begins = not self.directory.is_dir(name)
        try:
            directory = self.directory.subdir(name, create=True)
            write_topic_id(directory, topic_id)
            log = open_partition_log(directory, topic, partition, config, self, options)
        except DiskRefused:
            if begins:
                # Otherwise the next start finds a log that the metadata does not know, and sets it aside.
                with suppress(DiskError):
                    self.directory.remove_tree(name)
            raise
        log.segment_list.mark_dirty()
        # Making topics must not use up descriptors; the first append opens the file.
        log.active.file.rest()
        return log

    def adopt(self, log: PartitionLog) -> None:
        """Take a log that `make_log` has made into service."""
        self._entry_is_dirty = True
        log.home.set_short(self.room.is_short)
        self.logs[log.home.key] = log

    def expect(
        self,
        key: TopicPartition,
        *,
        log_start_offset: int | None,
        first_dirty_offset: int,
        recovery_point: int,
    ) -> None:
        """Have the checkpoints name a log that is about to move in; `log_start_offset` only if its files do not tell it."""
        if log_start_offset is not None:
            self._log_starts[key] = log_start_offset
        if first_dirty_offset != NEVER_CLEANED:
            self._first_dirty[key] = first_dirty_offset
        self._recovery_points[key] = recovery_point

    def expect_no_longer(self, key: TopicPartition) -> None:
        """The log that `expect` named is in service, or does not come."""
        for offsets in (self._log_starts, self._first_dirty, self._recovery_points):
            offsets.pop(key, None)

    def delete_log(self, topic: str, partition: int) -> None:
        """Take a log out of service; its files go after `file.delete.delay.ms`."""
        log = self.logs.pop(TopicPartition(topic, partition))
        renamed = self._set_aside(log, DELETE_SUFFIX)
        if renamed is not None:
            self.background.remove_tree_at(renamed, self._due_ms(log.config))

    def set_stray(self, topic: str, partition: int) -> None:
        """Take a log out of service that the cluster does not know; its files stay, for an operator to judge."""
        self._set_aside(self.logs.pop(TopicPartition(topic, partition)), STRAY_SUFFIX)

    def set_rotten(self, topic: str, partition: int) -> str | None:
        """Set a log aside as `set_stray` does; another log of the same name will follow. Returns the name under which
        it is kept.

        The checkpoint must not take the old log's recovery point for the new one's.
        """
        renamed = self._set_aside(self.logs.pop(TopicPartition(topic, partition)), STRAY_SUFFIX)
        if self.offline_reason is None:
            try:
                self.write_recovery_points()
            except DiskError as error:
                self.disk_failed_unless_refused(error)
        return renamed

    def forget_gone(self, key: TopicPartition) -> None:
        """Write the checkpoints without the logs that are gone, if a log of this name is. Blocks. Raises `DiskError`.

        Checkpoints know logs by name. A new log of that name must not inherit a recovery point, a high watermark or
        a log start.
        """
        if key not in self._gone:
            return
        gone = frozenset(self._gone)
        with self.small_files:
            self.background.forget_written()
            self.directory.write_atomic(HIGH_WATERMARK_FILE, self.high_watermark_offsets())
            self.directory.write_atomic(LOG_START_FILE, self.log_starts())
            if self.directory.exists(CLEANER_FILE):
                self.directory.write_atomic(CLEANER_FILE, self.first_dirty_offsets())
            self.directory.write_atomic(RECOVERY_POINT_FILE, self.recovery_points())
        self._gone -= gone

    def _set_aside(self, log: PartitionLog, suffix: str) -> str | None:
        self._gone.add(TopicPartition(log.topic, log.partition))
        if log.first_dirty_offset != NEVER_CLEANED:
            self.background.cleaner_offsets_moved = True
        log.abandon()
        if self.offline_reason is not None:
            return None
        # Kafka's form: a unique part, so that a topic of the same name can be set aside again.
        tail = f"-{log.partition}.{self.context.random.getrandbits(128):032x}{suffix}"
        renamed = log.topic[: _NAME_BYTES_MAX - len(tail)] + tail
        name = f"{log.topic}-{log.partition}"
        if self.is_stalled:
            self._waiting.renames.append((name, renamed))
            return renamed
        return renamed if self._rename(name, renamed) else None

    def _rename(self, name: str, renamed: str) -> bool:
        try:
            self.directory.rename(name, renamed)
        except DiskError as error:
            self.disk_failed(error)
            return False
        self.background.entry_is_dirty = True
        return True

    def _due_ms(self, config: LogConfig) -> int:
        return int(self.context.clock.monotonic() * 1000) + config.file_delete_delay_ms

    # --- what logs tell (see log_types.LogOwner)

    def disk_failed(self, error: DiskError) -> None:
        self.errors += 1
        self.go_offline(str(error))

    def disk_failed_unless_refused(self, error: DiskError) -> None:
        """Take the directory offline, unless the error is a full disk or a lack of descriptors."""
        if isinstance(error, DiskRefused):
            self.disk_refused(error)
        else:
            self.disk_failed(error)

    def disk_refused(self, error: DiskRefused) -> None:
        self.errors += 1
        if isinstance(error, ResourcesShort):
            self.resources_short()
        elif isinstance(error, DiskFull):
            self.refused_at = self.context.clock.monotonic()
            if self.full_since is None:
                self.full_since = self.refused_at
        elif isinstance(error, DiskHung):
            self._suspect(error)

    def _suspect(self, error: DiskHung) -> None:
        """Keep the loop away from a device that has not answered in time; `Background` waits until it does."""
        if not self.is_suspected:
            self.is_suspected = True
            self.context.log.warning("directory.suspected", directory=self.path, call=error.operation)
            if not self.is_stalled:
                self.set_stalled(True)

    def device_answers(self) -> None:
        """The write that has not been answered in time is undone."""
        self.is_suspected = False
        if self.is_stalled and self.trouble is not Trouble.HUNG:
            self.set_stalled(False)

    def recovery_point_lowered(self, topic: str, partition: int, offset: int) -> None:
        if TopicPartition(topic, partition) in self.logs:
            self.write_recovery_points()

    def remove_later(self, topic: str, partition: int, directory: Dir, names: list[str]) -> None:
        log = self.logs.get(TopicPartition(topic, partition))
        config = self.config_for(topic) if log is None else log.config
        self.background.remove_files_at(directory, names, self._due_ms(config))

    def log_start_raised(self) -> None:
        self.background.log_starts.want()

    def start_stored(self, log: PartitionLog, offset: int) -> None:
        """Note that a log's start has come to its checkpoint, unless the log is gone."""
        if self.logs.get(TopicPartition(log.topic, log.partition)) is log:
            log.store_start(offset)
            self.context.on_start_stored(log)

    def cleaner_offset_moved(self, topic: str, partition: int, *, durably: bool) -> None:
        if not durably:
            self.background.cleaner_offsets_moved = True
        elif TopicPartition(topic, partition) in self.logs:
            with self.small_files:
                self.background.forget_written()
                self.directory.write_atomic(CLEANER_FILE, self.first_dirty_offsets())

    def log_rolled(self, topic: str, partition: int) -> None:
        self.background.flush_soon(topic, partition)

    def resources_short(self) -> None:
        self.background.wants_descriptors = True

    def flush_failed(self, error: DiskError) -> None:
        self.flush_failure = error

    def sync_entry(self) -> None:
        with self.small_files:
            if self._entry_is_dirty:
                # Cleared before the sync, which may miss what the loop renames from now on.
                self._entry_is_dirty = False
                try:
                    self.directory.sync()
                except DiskRefused:
                    self._entry_is_dirty = True
                    raise

    # --- checkpoints

    def recovery_points(self) -> bytes:
        return encode_offsets(
            {**self._recovery_points, **{key: log.recovery_point for key, log in dict(self.logs).items()}}
        )

    def log_starts(self, rising: RisingStarts | None = None) -> bytes:
        """The log start offsets that the names of the segments do not tell (Kafka's rule).

        `rising` gets the logs whose start is not stored, with the start that counts here.
        """
        starts = dict(self._log_starts)
        for key, log in dict(self.logs).items():
            start_offset = log.log_start_offset
            if start_offset > log.segment_list.base_offset:
                starts[key] = start_offset
            if rising is not None and start_offset > log.stored_start_offset:
                rising.append((log, start_offset))
        return encode_offsets(starts)

    def first_dirty_offsets(self) -> bytes:
        """The offsets below which logs are clean, of those that have ever been cleaned."""
        first_dirty = {
            key: log.first_dirty_offset
            for key, log in dict(self.logs).items()
            if log.first_dirty_offset != NEVER_CLEANED
        }
        return encode_offsets({**self._first_dirty, **first_dirty})

    def high_watermark_offsets(self) -> bytes:
        return encode_offsets({key: log.high_watermark for key, log in dict(self.logs).items()})

    def write_recovery_points(self) -> None:
        """Write the recovery-point checkpoint (blocking, in a worker or on the loop). Raises `DiskError`.

        The offsets are read under the lock, so that a write never puts back what a truncation has lowered.
        """
        with self.small_files:
            self.directory.write_atomic(RECOVERY_POINT_FILE, self.recovery_points())

    # --- life and death

    @property
    def is_served(self) -> bool:
        """True while the directory is in service: neither offline nor being closed."""
        return self.offline_reason is None and not self._is_closed

    async def run_background(self) -> None:
        """Run flush, retention, checkpoints and removal of files, until cancelled or the directory is offline."""
        await self.background.run()

    async def run_log_starts(self, new_event: Callable[[], Event]) -> None:
        """Write the checkpoint of log starts whenever records were deleted, until cancelled or offline."""
        await self.background.log_starts.run(new_event)

    def go_offline(self, reason: str) -> None:
        """Stop serving this directory's logs. Only the first reason counts."""
        if self.offline_reason is None:
            self.offline_reason = reason
            self.context.log.error("log_dir.offline", directory=self.path, reason=reason)
            for log in self.logs.values():
                log.abandon()
            self.context.on_offline(self, reason)

    def release(self) -> None:
        """Let go of a directory without logs, so that its disk may be unmounted. To others it is offline."""
        if self.logs or self.logs_being_made or self.offline_reason is not None:
            raise AssertionError(f"{self.path} is in use, or offline, and cannot be released")
        self.is_released = True
        self.offline_reason = "it has been released: its disk may be pulled"
        self.context.log.info("log_dir.released", directory=self.path)
        self.context.on_offline(self, self.offline_reason)
        self.directory.unlock()

    def set_stalled(self, stalled: bool) -> None:
        """Refuse all appends and reads; or end that for the logs that have neither failed nor been closed
        meanwhile.
        """
        self.is_stalled = stalled
        if stalled:
            online = [log for log in self.logs.values() if not log.offline]
            self._waiting = _Waiting(online, self._waiting.renames)
            for log in self._waiting.logs:
                log.home.stall()
            return
        waiting, self._waiting = self._waiting, _Waiting()
        for name, renamed in waiting.renames:
            if self.offline_reason is None:
                self._rename(name, renamed)
        if self.offline_reason is None and self.flush_failure is None:
            for log in waiting.logs:
                log.home.resume()

    def close_clean(self, broker_epoch: int) -> None:
        """Sync everything and leave the clean-shutdown marker (blocking, in a worker); the logs are closed then.

        If the logs of a directory were not all loaded, the marker that was there at the start is written again. A
        directory that was recovering gets none. After this call the directory must not be used. A failure is raised
        here; `on_offline` is not called.

        Raises:
            DiskError: no marker has been written.
        """
        if self.offline_reason is not None:
            return
        if not self.is_loaded:
            if self.clean_shutdown_broker_epoch is not None:
                epoch = encode_clean_shutdown(self.clean_shutdown_broker_epoch)
                self.directory.write_atomic(CLEAN_SHUTDOWN_FILE, epoch)
            return
        self._is_closed = True
        try:
            for log in list(self.logs.values()):
                log.close()
            self.write_recovery_points()
            with self.small_files:
                self.directory.write_atomic(LOG_START_FILE, self.log_starts())
                if self.background.cleaner_offsets_moved:
                    self.directory.write_atomic(CLEANER_FILE, self.first_dirty_offsets())
                self.directory.write_atomic(HIGH_WATERMARK_FILE, self.high_watermark_offsets())
            self.directory.write_atomic(CLEAN_SHUTDOWN_FILE, encode_clean_shutdown(broker_epoch))
        except DiskError as error:
            self.offline_reason = str(error)
            raise

    def measure_space(self) -> None:
        """Ask the device for its room (blocking). Raises `DiskError`."""
        self.space = DiskSpace(self.directory.total_bytes(), self.directory.free_bytes())

    def note_sync(self, seconds: float) -> None:
        """A sync took so long: tell the operator if the disk has got slow, or is normal again."""
        latency = self.latency
        if not latency.note(seconds):
            return
        figures = {
            "sync_ms": round(latency.recent_seconds * 1000, 1),
            "usual_sync_ms": round(latency.usual_seconds * 1000, 1),
        }
        if latency.is_slow:
            self.context.log.warning("directory.latency_high", directory=self.path, **figures)
        else:
            self.context.log.warning("directory.latency_normal", directory=self.path, **figures)

    def judge_room(self) -> None:
        """Judge the room as last measured (on the loop): refuse records, or take them again, and tell the operator."""
        room, now = self.room, self.context.clock.monotonic()
        if room.note(now, *self.space):
            for log in self.logs.values():
                log.home.set_short(room.is_short)
            told = {"free_bytes": room.free_bytes, "reserve_bytes": room.reserve_bytes}
            if room.is_short:
                self.context.log.warning("directory.reserve_reached", directory=self.path, **told)
            else:
                self.context.log.warning("directory.reserve_left", directory=self.path, **told)
        if room.is_short and self.full_since is None:
            self.full_since = self.refused_at = now
        hours = room.hours_left
        if hours is None or hours >= 2 * ALARM_HOURS:
            self._is_alarmed = False
        elif hours < ALARM_HOURS and not self._is_alarmed and not room.is_short:
            self._is_alarmed = True
            self.context.log.warning(
                "directory.filling",
                directory=self.path,
                hours_left=round(hours, 1),
                free_bytes=room.free_bytes,
                bytes_per_hour=round(room.fill_bytes_per_second * 3600),
            )

    @property
    def hours_left(self) -> float | None:
        """Hours until only the reserve is left; None if the disk is out of service or does not fill."""
        return None if self.offline_reason is not None else self.room.hours_left

    def statistics(self) -> dict[str, Any]:
        """Figures for the console and the metrics."""
        hours = self.hours_left
        return {
            "path": self.path,
            "offline_reason": self.offline_reason,
            "is_released": self.is_released,
            "is_stalled": self.is_stalled,
            "trouble": None if self.trouble is None else self.trouble.value,
            "logs": len(self.logs),
            "size_bytes": sum(log.size_bytes for log in self.logs.values()),
            "total_bytes": self.space.total_bytes,
            "free_bytes": self.space.free_bytes,
            "reserve_bytes": self.room.reserve_bytes,
            "is_short": self.room.is_short,
            "is_slow": int(self.latency.is_slow),
            "sync_seconds": self.latency.recent_seconds,
            "usual_sync_seconds": self.latency.usual_seconds,
            "errors": self.errors,
            "fill_bytes_per_second": self.room.fill_bytes_per_second,
            "hours_left": -1.0 if hours is None else hours,
            **self.background.statistics(),
        }


def parse_partition_name(name: str) -> TopicPartition | None:
    """Topic and partition of a partition directory's name; None for any other name."""
    if name.endswith((DELETE_SUFFIX, STRAY_SUFFIX)):
        return None
    match = _PARTITION_NAME.fullmatch(name)
    return TopicPartition(match[1], int(match[2])) if match is not None else None
