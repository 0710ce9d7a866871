"""Reads the offset checkpoints of one log directory at the start, and writes their new contents later.
PORTED.

A checkpoint has an entry for each log, by topic and partition. Most entries come from the open logs. The
others are remembered offsets of logs that are not open yet: logs still to be loaded, and logs about to move
to this directory. Every writer reads the offsets while it holds the lock of the small files. So a write does
not undo another writer's lower offset. It also leaves out a log that was set aside in the meantime.

The recovery-point checkpoint never exceeds the synced offset.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b

from odradek.data_plane.log.directory.checkpoints import (
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    Offsets,
    encode_offsets,
    read_offsets,
)
from odradek.data_plane.log.directory.log_starts import RisingStarts
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.parts.cleaning_state import NEVER_CLEANED
from odradek.data_plane.log.parts.leader_epochs import MalformedCheckpoint
from odradek.data_plane.log.segments.small_files import remove_if_present, write_whole
from odradek.env.ports import Dir, DiskRefused, Log
from odradek.named_states import reached
from odradek.wire.topic_partition import TopicPartition

__all__ = ["OffsetCheckpoints"]


class OffsetCheckpoints:
    """The checkpoints of the logs in one directory. The loop changes `logs`; workers write the files."""

    def __init__(self, directory: Dir, logs: dict[TopicPartition, PartitionLog], log: Log) -> None:
        """Read the checkpoints that the last process has written (blocking). Raises `DiskError`."""
        self._directory = directory
        self._logs = logs
        self._log = log
        self.lock = threading.Lock()
        """The lock that a writer of any small file of the directory, or of a log in it, must hold."""
        self._gone: set[TopicPartition] = set()
        """Logs that were set aside, and may still have entries in the files."""
        self._digests: dict[str, bytes] = {}
        """A digest of each checkpoint's last text, by file name. The texts themselves would take memory for
        every log.
        """
        self.recovery_points = self._read(RECOVERY_POINT_FILE)
        """The recovery points in the file, for logs that are not open yet. In the same way, `starts` has the
        log start offsets, and `first_dirty` has the first dirty offsets.
        """
        self.starts = self._read(LOG_START_FILE)
        self.first_dirty = self._read(CLEANER_FILE)
        self.high_watermarks = self._read(HIGH_WATERMARK_FILE)
        """The high watermarks in the file at the start, for partitions that are not loaded yet or are created
        again.
        """
        self.cleaner_offsets_moved = False
        """True after a pass of the cleaner, or after a cleaned log was removed. The next upkeep turn then
        writes the checkpoint.
        """

    def _read(self, name: str) -> Offsets:
        try:
            return read_offsets(self._directory, name)
        except MalformedCheckpoint as error:
            reached("log.checkpoint_unreadable")
            # Continue without this checkpoint. Recovery then reads more than necessary, but no records are
            # lost.
            path = self._directory.path
            self._log.warning("log_dir.checkpoint_unreadable", directory=path, file=name, error=str(error))
            return {}

    # --- logs that are added or removed

    def say_too_much(self, opened: Iterable[TopicPartition]) -> bool:
        """True if an offset in a checkpoint is too high for its log. Loading has dropped damaged records that
        the checkpoint calls durable or clean.
        """
        return any(map(self._ends_below, opened))

    def lower(self) -> None:
        """Rewrite the checkpoints with the logs' lower offsets, before anything is appended (blocking).

        Otherwise the next start after a crash would take new records at the same offsets for durable or
        clean. If the disk is too full to write the checkpoints, they are removed. Without them the next start
        reads the whole logs. Raises `DiskError`.
        """
        with self.lock:
            try:
                self._directory.write_atomic(RECOVERY_POINT_FILE, self.recovery_point_text())
                if self.first_dirty:
                    self._directory.write_atomic(CLEANER_FILE, self.first_dirty_text())
            except DiskRefused:
                remove_if_present(self._directory, RECOVERY_POINT_FILE)
                remove_if_present(self._directory, CLEANER_FILE)
                self._directory.sync()

    def _ends_below(self, key: TopicPartition) -> bool:
        log = self._logs[key]
        first_dirty = self.first_dirty.get(key, NEVER_CLEANED)
        return log.recovery_point < self.recovery_points.get(key, 0) or log.first_dirty_offset < first_dirty

    def all_are_open(self, left: Collection[TopicPartition]) -> None:
        """Forget the offsets of logs that no longer exist. Called when all logs are open, except those in
        `left`.
        """
        known = (*self.recovery_points, *self.starts, *self.first_dirty, *self.high_watermarks)
        self._gone.update(key for key in known if key not in self._logs and key not in left)
        self.recovery_points = {key: self.recovery_points[key] for key in left if key in self.recovery_points}
        self.starts = {key: self.starts[key] for key in left if key in self.starts}
        self.first_dirty = {key: self.first_dirty[key] for key in left if key in self.first_dirty}

    def expect(
        self,
        key: TopicPartition,
        *,
        log_start_offset: int | None,
        first_dirty_offset: int,
        recovery_point: int,
    ) -> None:
        """Set the offsets of a log that will be opened next. `log_start_offset` is None if the name of the
        log's first segment already gives the start offset.
        """
        if log_start_offset is not None:
            self.starts[key] = log_start_offset
        if first_dirty_offset != NEVER_CLEANED:
            self.first_dirty[key] = first_dirty_offset
        self.recovery_points[key] = recovery_point

    def expect_no_longer(self, key: TopicPartition) -> None:
        """Forget the offsets that `expect` has set, because the log is in service, or will not be opened."""
        for offsets in (self.starts, self.first_dirty, self.recovery_points):
            offsets.pop(key, None)

    def write_expected(self, first_dirty_offset: int) -> None:
        """Write the checkpoints with the entries that `expect` has set (blocking). `first_dirty_offset` may
        be NEVER_CLEANED. Raises `DiskError`.
        """
        with self.lock:
            self._digests = {}
            self._directory.write_atomic(LOG_START_FILE, self.log_start_text())
            if first_dirty_offset != NEVER_CLEANED:
                self._directory.write_atomic(CLEANER_FILE, self.first_dirty_text())
            self._directory.write_atomic(RECOVERY_POINT_FILE, self.recovery_point_text())

    def note_gone(self, log: PartitionLog) -> None:
        """Record that a log was set aside, so that its entries are left out from now on."""
        self._gone.add(log.home.key)
        if log.first_dirty_offset != NEVER_CLEANED:
            self.cleaner_offsets_moved = True

    def forget_gone(self, key: TopicPartition) -> None:
        """Write the checkpoints without the entry of a removed log with this name, if there was one
        (blocking). Raises `DiskError`.

        A new log of that name must not inherit a recovery point, a high watermark or a log start.
        """
        if key not in self._gone:
            return
        gone = frozenset(self._gone)
        with self.lock:
            self._digests = {}
            self._directory.write_atomic(HIGH_WATERMARK_FILE, self.high_watermark_text())
            self._directory.write_atomic(LOG_START_FILE, self.log_start_text())
            if self._directory.exists(CLEANER_FILE):
                self._directory.write_atomic(CLEANER_FILE, self.first_dirty_text())
            self._directory.write_atomic(RECOVERY_POINT_FILE, self.recovery_point_text())
        self._gone -= gone

    # --- the texts of the checkpoints

    def recovery_point_text(self) -> bytes:
        points = {key: log.recovery_point for key, log in dict(self._logs).items()}
        return encode_offsets({**self.recovery_points, **points})

    def log_start_text(self, rising: RisingStarts | None = None) -> bytes:
        """Encode the log start offsets. A log is left out if its first segment begins at its start offset, as
        in Kafka. But a log stays as long as a loss of power may bring removed segments back.

        The logs whose start is not stored yet are appended to `rising`, each with its start offset in this
        text.
        """
        starts = dict(self.starts)
        for key, log in dict(self._logs).items():
            start_offset = log.log_start_offset
            segments = log.segment_list
            if start_offset > min(segments.base_offset, segments.durable_base_offset):
                starts[key] = start_offset
            if rising is not None and start_offset > log.stored_start_offset:
                rising.append((log, start_offset))
        return encode_offsets(starts)

    def first_dirty_text(self) -> bytes:
        """Encode the first dirty offsets of all logs that have been cleaned at least once."""
        first_dirty = {
            key: log.first_dirty_offset
            for key, log in dict(self._logs).items()
            if log.first_dirty_offset != NEVER_CLEANED
        }
        return encode_offsets({**self.first_dirty, **first_dirty})

    def high_watermark_text(self) -> bytes:
        return encode_offsets({key: log.high_watermark for key, log in dict(self._logs).items()})

    # --- writes of the checkpoints

    def write_recovery_points(self) -> None:
        """Write the recovery-point checkpoint (blocking). Raises `DiskError`."""
        with self.lock:
            self._directory.write_atomic(RECOVERY_POINT_FILE, self.recovery_point_text())

    def write_first_dirty(self) -> None:
        """Write the checkpoint of first dirty offsets (blocking). Raises `DiskError`."""
        with self.lock:
            self._digests = {}
            self._directory.write_atomic(CLEANER_FILE, self.first_dirty_text())

    def write_all(self) -> None:
        """Write all checkpoints, for a clean shutdown (blocking). Raises `DiskError`."""
        self.write_recovery_points()
        with self.lock:
            self._directory.write_atomic(LOG_START_FILE, self.log_start_text())
            if self.cleaner_offsets_moved:
                self._directory.write_atomic(CLEANER_FILE, self.first_dirty_text())
            self._directory.write_atomic(HIGH_WATERMARK_FILE, self.high_watermark_text())

    def replace(
        self, name: str, text: Callable[[], bytes], is_served: Callable[[], bool], *, durable: bool
    ) -> bool:
        """Replace a checkpoint, unless the file has the same text already (blocking). Raises `DiskError`.

        Returns False if the directory is no longer served, and leaves the file as it is. (`close_clean`
        itself writes the checkpoints of a directory that is closed.) The file is synced only if `durable` is
        true.
        """
        with self.lock:
            if not is_served():
                return False
            data = text()
            digest = blake2b(data).digest()
            if self._digests.get(name) == digest:
                return True
            self._digests.pop(name, None)
            if durable:
                self._directory.write_atomic(name, data)
            else:
                write_whole(self._directory, f"{name}.tmp", data)
                self._directory.rename(f"{name}.tmp", name)
            self._digests[name] = digest
            return True
