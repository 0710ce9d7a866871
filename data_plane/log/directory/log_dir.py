"""A log directory: opens, makes, deletes and sets aside its logs, refuses records while room is short (with warnings),
goes offline, closes clean.

Theory of operation
-------------------
Each directory has its own checkpoints and its own background loop, so a disk that hangs stalls only its own
partitions. Work that waits for the device (syncs, loading, removing files) runs in workers. Meanwhile the
loop may change logs. Where the loop itself calls the device, it waits only a limited time.

    served -> a call is not answered in time: suspected, all logs stalled -> answered: late changes end -> served

Rules
* While the directory is stalled, the loop makes no calls to the device. The directories of removed logs are
  renamed when the device answers.
* When the device answers, late changes end first. Then removed logs are renamed, and then the logs serve
  again.
* The recovery-point checkpoint never exceeds the synced offset. When a truncation lowers a recovery point,
  the checkpoint is rewritten before any bytes are removed.
* A refused operation (`DiskRefused`) may be tried again. Any other failure is final, and the directory goes
  offline permanently.
* The clean-shutdown marker is removed as soon as it has been read.
* Subdirectories whose names are not those of partitions are left alone; so are `-stray` directories.
  `-delete` directories, which an interrupted deletion has left behind, are removed. `-future` directories
  belong to `future_logs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import attrs

from odradek.data_plane.log.directory.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    encode_clean_shutdown,
    take_clean_shutdown,
)
from odradek.data_plane.log.directory.late_changes import LateChanges
from odradek.data_plane.log.directory.log_dir_background import Background, UpkeepContext
from odradek.data_plane.log.directory.log_loader import (
    DELETE_SUFFIX,
    FUTURE_SUFFIX,
    METADATA_TOPIC,
    STRAY_SUFFIX,
    LogLoader,
    parse_partition_name,
)
from odradek.data_plane.log.directory.log_names import LogNames
from odradek.data_plane.log.directory.offset_checkpoints import OffsetCheckpoints
from odradek.data_plane.log.directory.room import ALARM_HOURS, Room
from odradek.data_plane.log.directory.sync_latency import SyncLatency
from odradek.data_plane.log.directory.watched_workers import WatchedWorkers
from odradek.data_plane.log.loading import LoadingStopped, LoadOptions, open_partition_log, write_topic_id
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.env.pausing import pause
from odradek.env.ports import (
    Dir,
    DiskError,
    DiskFull,
    DiskHung,
    DiskRefused,
    Event,
    ResourcesShort,
)
from odradek.metadata_quorum.replica.meta_properties import MetaProperties, read_meta_properties
from odradek.serving.disk_troubles import Trouble
from odradek.wire.topic_partition import TopicPartition

__all__ = [
    "DELETE_SUFFIX",
    "FUTURE_SUFFIX",
    "METADATA_TOPIC",
    "STRAY_SUFFIX",
    "DiskSpace",
    "LogDir",
    "LogDirContext",
    "parse_partition_name",
]

T = TypeVar("T")

_NAME_BYTES_MAX = 255


class DiskSpace(NamedTuple):
    """The size of a directory's device, and the space on it that this process may use, both in bytes."""

    total_bytes: int
    free_bytes: int


@attrs.frozen(kw_only=True)
class LogDirContext(UpkeepContext):
    """Values that all log directories of a node share."""

    on_offline: Callable[[LogDir, str], None] = lambda log_dir, reason: None
    on_start_stored: Callable[[PartitionLog], None] = lambda log: None
    """Called on the loop when the log's start offset has been written to its checkpoint."""
    on_answer: Callable[[], None] = lambda: None
    """Called on the loop when a late device has answered, and its late changes have ended."""


class LogDir:
    """One log directory and its logs. `open` makes the object, and `load` opens its logs."""

    def __init__(
        self,
        directory: Dir,
        meta: MetaProperties,
        context: LogDirContext,
        config_for: Callable[[str], LogConfig],
    ) -> None:
        self.directory = directory
        self.path = directory.path
        self.context = context
        self.config_for = config_for
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.logs_being_made = 0
        """The number of logs that wait for a worker, or are being made. Placement counts them, too."""
        self.offline_reason: str | None = None
        self.is_released = False
        self._is_let_go = False
        """True once no file of a released directory is open any more, so that its disk may be removed."""
        self.clean_shutdown_broker_epoch = take_clean_shutdown(directory)
        """The broker epoch in the clean-shutdown marker: None after a crash, -1 if the epoch is not valid."""
        self.cluster_id = meta.cluster_id
        self.node_id = meta.node_id
        self.directory_id = meta.directory_id
        self.checkpoints = OffsetCheckpoints(directory, self.logs, context.log)
        self.changes = LateChanges(directory)
        self.names = LogNames(directory, self.changes, self.disk_failed, self.disk_refused)
        self.is_loaded = False
        """True once all logs are open."""
        self._is_closed = False
        self._entry_is_dirty = True
        """True if logs have been created since the directory was last synced."""
        self.flush_failure: DiskError | None = None
        self.space = DiskSpace(-1, -1)
        """The device's size and free space when last measured. Measuring may block."""
        self.room = Room(context.reserve_bytes)
        self.latency = SyncLatency()
        self.errors = 0
        """The number of failed or refused operations since the start."""
        self._is_alarmed = False
        """True once the warning that the disk will soon be full was logged."""
        self.workers = WatchedWorkers(lambda: self.context.workers, context.clock)
        self.trouble: Trouble | None = None
        """The trouble because of which other replicas should lead (`odradek.data_plane.disks.disk_watch`), or
        None.
        """
        self.trouble_since_ms = 0
        """The wall-clock time in milliseconds at which the trouble began."""
        self.full_since: float | None = None
        """The monotonic time in seconds at which a write first found the disk full; None if it has space."""
        self.refused_at = 0.0
        """The monotonic time in seconds of the last write that found no room."""
        self.is_stalled = False
        """True while the logs refuse appends and reads, because the device does not answer."""
        self.unanswered: tuple[float, str] | None = None
        """The late call to the device: the monotonic time in seconds at which it became late, and its name.
        None if no call is late.
        """
        self.background = Background(self)
        self._loader = self._new_loader()

    def _new_loader(self) -> LogLoader:
        return LogLoader(
            self.directory,
            self.context,
            self.workers,
            self.checkpoints,
            self,
            self.config_for,
            is_clean=self.clean_shutdown_broker_epoch is not None,
        )

    @classmethod
    def open(
        cls, directory: Dir, context: LogDirContext, *, config_for: Callable[[str], LogConfig]
    ) -> LogDir:
        """Lock the directory and read its small files (blocking).

        Raises:
            NotALogDirectory: the directory has not been formatted.
            DiskError: the directory cannot be read, or another process has locked it.
        """
        meta = read_meta_properties(directory)
        directory.lock()
        log_dir = cls(directory, meta, context, config_for)
        log_dir.measure_space()
        return log_dir

    # --- loading

    async def load(self) -> None:
        """Open every log. Recovers the logs unless the last shutdown was clean. An error takes the directory
        offline.

        Returns early if `stop_loading` is called. After such a return, the only allowed call is
        `close_clean`.
        """
        try:
            await self._loader.load(self.logs, lambda name: self.background.remove_tree_at(name, 0))
        except LoadingStopped:
            return
        except DiskError as error:
            self.disk_failed(error)
            return
        self.judge_room()
        self.is_loaded = True
        self.checkpoints.all_are_open(self._loader.unreadable)
        if not all(log.is_start_stored for log in self.logs.values()):
            self.log_start_raised()

    def stop_loading(self) -> None:
        """Make `load` return soon, because the node stops. Only a device that hangs can delay this."""
        self._loader.is_stopping = True

    # --- logs

    @property
    def unreadable(self) -> Mapping[TopicPartition, str]:
        """Partitions whose logs are out of service, because their topic id cannot be read. The value is the
        name of the file that should contain the id.
        """
        return self._loader.unreadable

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        return self.logs.get(TopicPartition(topic, partition))

    def create_log(self, topic: str, partition: int, topic_id: bytes, config: LogConfig) -> PartitionLog:
        """Make an empty log. The first flush of the log also syncs its directory.

        If a log of that name exists and has the same topic id, that log is returned. If it has another topic
        id, its directory is renamed to `-stray`.

        Raises:
            DiskError: the directory is offline.
            DiskRefused: the disk is full, or file descriptors are short.
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
        name = f"{topic}-{partition}"
        now_ms = context.clock.wall_ms()
        try:
            self.names.reserve(name)
            made = partial(self._make, topic, partition, topic_id, config, now_ms)
            log, _ = self.directory.in_time(made, self._unmake)
        except DiskHung as error:
            # Keep the name reserved until the device has answered. Before that, the late call may still make
            # the log's files and remove them again.
            self.disk_refused(error)
            raise
        except DiskError as error:
            self.names.free(name)
            self.disk_failed_unless_refused(error)
            raise
        self.names.free(name)
        self.adopt(log)
        return log

    def make_log(
        self, topic: str, partition: int, topic_id: bytes, config: LogConfig, now_ms: int
    ) -> PartitionLog:
        """Make the files of an empty log (blocking, in a worker); `adopt` puts it into service. Raises `DiskError`.

        `now_ms` is the wall clock in milliseconds. The caller passes the same `int` object for many logs, so
        that all of them share one object in memory.
        """
        self.names.check_free(f"{topic}-{partition}")
        return self._make(topic, partition, topic_id, config, now_ms)[0]

    def _make(
        self, topic: str, partition: int, topic_id: bytes, config: LogConfig, now_ms: int
    ) -> tuple[PartitionLog, bool]:
        """Make an empty log (blocking). Returns the log, and True if its directory did not exist before.
        Raises `DiskError`.
        """
        name = f"{topic}-{partition}"
        context = self.context
        options = LoadOptions(is_clean=True, now_ms=now_ms, random=context.random, log=context.log)
        self.checkpoints.forget_gone(TopicPartition(topic, partition))
        begins = not self.directory.is_dir(name)
        try:
            directory = self.directory.subdir(name, create=True)
            write_topic_id(directory, topic_id)
            log = open_partition_log(directory, topic, partition, config, self, options)
        except DiskRefused:
            if begins:
                # Remove the unfinished directory. Otherwise the next start would take it for a log, and set
                # it aside as a stray.
                with suppress(DiskError):
                    self.directory.remove_tree(name)
            raise
        log.segment_list.mark_dirty()
        # Close the descriptor, because making many topics must not use up all descriptors. The first append
        # opens the file again.
        log.active.file.rest()
        return log, begins

    def _unmake(self, made: tuple[PartitionLog, bool]) -> None:
        """Remove a log that the device has made too late (blocking). By now the replica may have a log in
        another directory.
        """
        log, begins = made
        log.abandon()
        if begins:
            self.directory.remove_tree(f"{log.topic}-{log.partition}")

    def adopt(self, log: PartitionLog) -> None:
        """Put a log that `make_log` has made into service."""
        self._entry_is_dirty = True
        log.home.set_short(self.room.is_short)
        if self.is_stalled:
            log.home.stall()
        self.logs[log.home.key] = log

    def delete_log(self, topic: str, partition: int) -> None:
        """Take a log out of service. Its files are removed after `file.delete.delay.ms`."""
        log = self.logs.pop(TopicPartition(topic, partition))
        self._set_aside(log, DELETE_SUFFIX, self._due_ms(log.config))

    def set_stray(self, topic: str, partition: int) -> None:
        """Take a log out of service, because the metadata does not know it. Its files stay, so that an
        operator can decide what to do with them.
        """
        self._set_aside(self.logs.pop(TopicPartition(topic, partition)), STRAY_SUFFIX)

    def set_rotten(self, topic: str, partition: int) -> str | None:
        """Take a log out of service as `set_stray` does, so that a new log can have its name. Returns the new
        name of its directory; None if the directory is offline.

        The checkpoint is rewritten, because the new log must not inherit the old log's recovery point.
        """
        renamed = self._set_aside(self.logs.pop(TopicPartition(topic, partition)), STRAY_SUFFIX)
        if self.is_served and not self.is_stalled:
            try:
                # The checkpoint is written here only if the rename was in time. Otherwise `forget_gone`
                # writes it before a new log of this name is made.
                self.directory.in_time(self.checkpoints.write_recovery_points, lambda written: None)
            except DiskError as error:
                self.disk_failed_unless_refused(error)
        return renamed

    def _set_aside(self, log: PartitionLog, suffix: str, remove_at_ms: int | None = None) -> str | None:
        """Take a log out of service and rename its directory, now or when the device answers. Returns the new
        name of the log's own directory. Returns None if the whole log directory is offline.
        """
        self.checkpoints.note_gone(log)
        log.abandon()
        if self.offline_reason is not None:
            return None
        # The form of the new name is Kafka's. Its random part makes it unique, so that a later log of the
        # same partition can be set aside, too.
        tail = f"-{log.partition}.{self.context.random.getrandbits(128):032x}{suffix}"
        renamed = log.topic[: _NAME_BYTES_MAX - len(tail)] + tail

        self._rename(f"{log.topic}-{log.partition}", renamed, remove_at_ms)
        return renamed if self.offline_reason is None else None

    def give_up_future(self, name: str) -> None:
        """Remove the directory of a future replica. The directory is first renamed, at once. So even if the
        node stops before the removal, the next start does not resume the move.
        """
        self._rename(name, name.removesuffix(FUTURE_SUFFIX) + DELETE_SUFFIX, 0)

    def _rename(self, name: str, renamed: str, remove_at_ms: int | None) -> None:
        def done() -> None:
            self.background.entry_is_dirty = True
            if remove_at_ms is not None:
                self.background.remove_tree_at(renamed, remove_at_ms)

        self.names.set_aside(name, renamed, done, may_remove=remove_at_ms is not None)
        if not self.is_stalled:
            self._carry_out_renames()

    def _carry_out_renames(self) -> None:
        try:
            self.names.carry_out()
        except DiskHung as error:
            self.disk_refused(error)

    def _due_ms(self, config: LogConfig) -> int:
        return int(self.context.clock.monotonic() * 1000) + config.file_delete_delay_ms

    # --- calls of logs (see log_types.LogOwner)

    def change(
        self, work: Callable[[], T], end: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        self.changes.make(work, end, failed)

    @property
    def small_files(self) -> AbstractContextManager[object]:
        return self.checkpoints.lock

    def disk_failed(self, error: DiskError) -> None:
        self.errors += 1
        self.go_offline(str(error))

    def disk_failed_unless_refused(self, error: DiskError) -> None:
        """Take the directory offline, unless the error only means a full disk or too few descriptors."""
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
        """Stall all logs, because the device has not answered a call of the loop in time. From now on the
        loop makes no calls to the device. `Background` waits for the answer.
        """
        if not self.is_suspected:
            self.unanswered = self.context.clock.monotonic(), error.operation
            self.context.log.warning("directory.suspected", directory=self.path, call=error.operation)
            if not self.is_stalled:
                self.set_stalled(True)

    def device_answers(self) -> None:
        """Finish or undo the late call, because the device has answered. Raises `DiskError`."""
        self.unanswered = None
        self.changes.finish()
        self.names.settle()
        if self.is_suspected:
            # Stay stalled. The end of the late change has called the device again, and this call is late.
            return
        if self.is_stalled and self.trouble is not Trouble.HUNG:
            self.set_stalled(False)
        self.context.on_answer()

    def recovery_point_lowered(self, topic: str, partition: int, offset: int) -> None:
        if TopicPartition(topic, partition) in self.logs:
            self.checkpoints.write_recovery_points()

    def remove_later(self, topic: str, partition: int, directory: Dir, names: list[str]) -> None:
        log = self.logs.get(TopicPartition(topic, partition))
        config = self.config_for(topic) if log is None else log.config
        self.background.remove_files_at(directory, names, self._due_ms(config))

    def log_start_raised(self) -> None:
        self.background.log_starts.want()

    def start_stored(self, log: PartitionLog, offset: int) -> None:
        """Record that a log's start offset has been written to its checkpoint, unless the log was removed
        meanwhile.
        """
        if self.logs.get(TopicPartition(log.topic, log.partition)) is log:
            log.store_start(offset)
            self.context.on_start_stored(log)

    def cleaner_offset_moved(self, topic: str, partition: int, *, durably: bool) -> None:
        if not durably:
            self.checkpoints.cleaner_offsets_moved = True
        elif TopicPartition(topic, partition) in self.logs:
            self.checkpoints.write_first_dirty()

    def log_rolled(self, topic: str, partition: int) -> None:
        self.background.flush_soon(topic, partition)

    def resources_short(self) -> None:
        self.background.wants_descriptors = True

    def flush_failed(self, error: DiskError) -> None:
        self.flush_failure = error

    def sync_entry(self) -> None:
        with self.small_files:
            if self._entry_is_dirty:
                # Clear the mark before the sync. The sync may miss a rename that the loop makes meanwhile,
                # and that rename sets the mark again.
                self._entry_is_dirty = False
                try:
                    self.directory.sync()
                except DiskRefused:
                    self._entry_is_dirty = True
                    raise

    # --- start and end of service

    @property
    def is_suspected(self) -> bool:
        """True while a call to the device is late. The logs are stalled until the device answers."""
        return self.unanswered is not None

    @property
    def is_served(self) -> bool:
        """True while the directory is in service: neither offline nor being closed."""
        return self.offline_reason is None and not self._is_closed

    async def run_background(self) -> None:
        """Run flush, retention, checkpoints and the removal of files, until cancelled or the directory is
        offline.
        """
        await self.background.run()

    async def run_log_starts(self, new_event: Callable[[], Event]) -> None:
        """Write the checkpoint of log start offsets whenever records were deleted, until cancelled or the
        directory is offline.
        """
        await self.background.log_starts.run(new_event)

    def go_offline(self, reason: str) -> None:
        """Stop serving this directory's logs. Later calls change nothing: the first reason is kept."""
        if self.offline_reason is None:
            self.offline_reason = reason
            self.context.log.error("log_dir.offline", directory=self.path, reason=reason)
            for log in self.logs.values():
                log.abandon()
            self.changes.give_up(DiskError(self.path, self.path, "change", 0, reason))
            self.context.on_offline(self, reason)

    def release(self) -> None:
        """Release a directory without logs, so that its disk may be unmounted. Other parts of the node then
        treat it as offline.
        """
        if self.logs or self.logs_being_made or self.offline_reason is not None:
            raise AssertionError(f"{self.path} is in use or offline, so the node cannot release it")
        self.is_released = True
        self.offline_reason = "an operator has retired the directory, so its disk may be pulled"
        self.context.log.info("log_dir.released", directory=self.path)
        self.context.on_offline(self, self.offline_reason)
        self.directory.unlock()

    @property
    def is_let_go(self) -> bool:
        """True once no file of the released directory is open any more. After the release, workers may have
        files open for a while.
        """
        if self.is_released and not self._is_let_go:
            self._is_let_go = not self.directory.is_open()
        return self._is_let_go

    def set_stalled(self, stalled: bool) -> None:
        """Make all logs refuse appends and reads, or accept them again. Logs that have failed or been closed
        continue to refuse.
        """
        self.is_stalled = stalled
        if stalled:
            for log in self.logs.values():
                log.home.stall()
            return
        if self.offline_reason is None:
            self._carry_out_renames()
        if not self.is_suspected and self.offline_reason is None and self.flush_failure is None:
            for log in self.logs.values():
                log.home.resume()

    def close_clean(self, broker_epoch: int) -> None:
        """Sync and close all logs, and write the clean-shutdown marker (blocking, in a worker).

        If loading has not ended, the logs are left alone. The clean-shutdown marker is then written again if
        the directory had one at the start. So a directory that was being recovered gets no marker. After this
        call the directory must not be used. A failure is raised here; `on_offline` is not called.

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
                pause()
                log.close()
            pause()
            self.checkpoints.write_all()
            pause()
            self.directory.write_atomic(CLEAN_SHUTDOWN_FILE, encode_clean_shutdown(broker_epoch))
        except DiskError as error:
            self.offline_reason = str(error)
            raise

    def measure_space(self) -> None:
        """Measure the device's size and free space (blocking). Raises `DiskError`."""
        self.space = DiskSpace(self.directory.total_bytes(), self.directory.free_bytes())

    def note_sync(self, seconds: float) -> None:
        """Record the duration of a sync. Logs for the operator when the disk becomes slow, or normal again."""
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
        """Compare the measured free space with the limits (on the loop). If a limit is crossed, logs the
        change, and refuses records or accepts them again.
        """
        room, now = self.room, self.context.clock.monotonic()
        if room.note(now, *self.space):
            for log in self.logs.values():
                log.home.set_short(room.is_short)
            fields = {"free_bytes": room.free_bytes, "reserve_bytes": room.reserve_bytes}
            if room.is_short:
                self.context.log.warning("directory.reserve_reached", directory=self.path, **fields)
            else:
                self.context.log.warning("directory.reserve_left", directory=self.path, **fields)
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
        """The hours until only the reserve is left; None if the disk is out of service or does not fill up."""
        return None if self.offline_reason is not None else self.room.hours_left

    def size_bytes(self) -> int:
        """Add up the bytes of the segments of all logs."""
        return sum(log.size_bytes for log in self.logs.values())

    def statistics(self, size_bytes: int | None = None) -> dict[str, Any]:
        """Return figures for the console and the metrics. A caller that has just added up the sizes of all logs names
        the sum, so that it is not computed again.
        """
        hours = self.hours_left
        return {
            "path": self.path,
            "offline_reason": self.offline_reason,
            "is_released": self.is_released,
            "is_stalled": self.is_stalled,
            "trouble": None if self.trouble is None else self.trouble.value,
            "logs": len(self.logs),
            "size_bytes": self.size_bytes() if size_bytes is None else size_bytes,
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
