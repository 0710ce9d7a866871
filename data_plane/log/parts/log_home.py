"""The surroundings that all parts of a log know: its directory, its owner, and whether it works.

A failed operation takes the log, and its directory, offline. Some failures do not:

- a lack of room or descriptors (`DiskRefused`), unless a sync met it;
- a worker's call at a file that the loop has closed meanwhile;
- a missing file of a log that was closed meanwhile.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from data_plane.log.log_types import LogOwner
from data_plane.log.segments.segment import remove_if_present
from odradek.env.ports import Dir, DiskError, DiskFull, DiskRefused, FileClosed, FileMissing, ResourcesShort
from wire.errors import ErrorCode, KafkaError
from wire.topic_partition import TopicPartition


class LogHome:
    """The facts that all parts of a log share. `owner` is None for a log without a log directory around it."""

    __slots__ = (
        "directory",
        "is_closed",
        "is_short",
        "is_stalled",
        "key",
        "offline",
        "owner",
        "refuses_appends",
    )

    def __init__(self, directory: Dir, key: TopicPartition, owner: LogOwner | None) -> None:
        self.directory = directory
        self.key = key
        self.owner = owner
        self.offline = False
        """True while appends and reads are refused: after a failure, while the device hangs, or after the log's
        end.
        """
        self.is_short = False
        """True while only the reserve of the disk is left (`data_plane.log.directory.room`)."""
        self.refuses_appends = False
        """True while `check_append` has a reason to refuse one: an append looks at this alone."""
        self.is_closed = False
        self.is_stalled = False
        """True while the device does not answer."""

    def __str__(self) -> str:
        return str(self.key)

    @property
    def topic(self) -> str:
        return self.key.topic

    @property
    def partition(self) -> int:
        return self.key.partition

    # --- whether it works

    def _set_offline(self, is_offline: bool) -> None:
        self.offline = is_offline
        self.refuses_appends = is_offline or self.is_short

    def set_short(self, is_short: bool) -> None:
        """Refuse records while only the reserve of the disk is left, or end that."""
        self.is_short = is_short
        self.refuses_appends = self.offline or is_short

    def check_append(self, *, may_use_reserve: bool) -> None:
        """Raise `KafkaError` KAFKA_STORAGE_ERROR while offline, `DiskFull` for what must leave the reserve alone."""
        if self.offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory is offline")
        if self.is_short and not may_use_reserve:
            path = self.directory.path
            error = DiskFull(path, path, "append", errno.ENOSPC, "only the reserve of the disk is left")
            self.refused(error)
            raise error

    def check_answers(self) -> None:
        """Raise `KafkaError` KAFKA_STORAGE_ERROR while the device does not answer: the loop would wait with it."""
        if self.is_stalled:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the device does not answer")

    def stall(self) -> None:
        """Refuse appends, reads and truncations until `resume`: the device does not answer."""
        self.is_stalled = True
        self._set_offline(True)

    def resume(self) -> None:
        """End a stall, unless the log was closed meanwhile."""
        self.is_stalled = False
        self._set_offline(self.is_closed)

    def close(self) -> None:
        """End appends and reads for good."""
        self.is_closed = True
        self._set_offline(True)

    # --- failures

    @contextmanager
    def telling_failures(self) -> Iterator[None]:
        """Tell the owner of what fails within, on the loop."""
        try:
            yield
        except DiskError as error:
            self.failed(error)
            raise

    def failed(self, error: DiskError) -> None:
        """Take the directory offline after a failed operation, unless the failure may pass or the log was closed
        meanwhile.
        """
        if isinstance(error, DiskRefused):
            self.refused(error)
        if not self._is_harmless(error):
            self.give_up(error)

    def failed_in_worker(self, error: DiskError) -> None:
        """Do what `failed` does; the directory goes offline on the loop, at its next look."""
        if not self._is_harmless(error):
            self._set_offline(True)
            if self.owner is not None:
                self.owner.flush_failed(error)

    def refused(self, error: DiskRefused) -> None:
        """Tell the owner of a lack of room or descriptors."""
        if self.owner is not None:
            self.owner.disk_refused(error)

    def give_up(self, error: DiskError) -> None:
        """Take the log and its directory offline."""
        self._set_offline(True)
        if self.owner is not None:
            self.owner.disk_failed(error)

    def is_overtaken(self, error: DiskError) -> bool:
        """True if a worker met files that the loop has closed, removed or renamed since it was sent."""
        return isinstance(error, FileClosed) or (self.is_closed and isinstance(error, FileMissing))

    def _is_harmless(self, error: DiskError) -> bool:
        """True if the device works in spite of the error: room or descriptors were short, or the log was closed
        meanwhile.
        """
        if isinstance(error, ResourcesShort) and self.owner is not None:
            self.owner.resources_short()
        return (isinstance(error, DiskRefused) and error.operation != "sync") or self.is_overtaken(error)

    # --- what the owner does for the log

    def lower_recovery_point(self, offset: int) -> None:
        """Make the lower recovery point durable. Raises `KafkaError` where there is no room for it, `DiskError`."""
        if self.owner is not None:
            with self._needing_room():
                self.owner.recovery_point_lowered(self.topic, self.partition, offset)

    def save_recovery_point(self, offset: int) -> None:
        """Make it durable that all below `offset` is on the device (blocking). Raises `DiskError`."""
        if self.owner is not None:
            self.owner.recovery_point_lowered(self.topic, self.partition, offset)

    def cleaner_offset_moved(self, *, durably: bool) -> None:
        """Tell of another first dirty offset. Raises as `lower_recovery_point` if it must be durable at once."""
        if self.owner is not None:
            with self._needing_room():
                self.owner.cleaner_offset_moved(self.topic, self.partition, durably=durably)

    @contextmanager
    def _needing_room(self) -> Iterator[None]:
        try:
            yield
        except DiskRefused as error:
            self.refused(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"no room for a truncation: {error}") from error

    def remove_later(self, names: list[str]) -> None:
        """Remove files of the log when those who are opening them have done so; at once where there is no owner."""
        if self.owner is not None:
            self.owner.remove_later(self.topic, self.partition, self.directory, names)
        else:
            for name in names:
                remove_if_present(self.directory, name)

    def small_files(self) -> AbstractContextManager[object]:
        """Held while a small file of the log is replaced, by one writer at a time."""
        return nullcontext() if self.owner is None else self.owner.small_files

    def sync_entry(self) -> None:
        """Make the log's directory itself durable (blocking)."""
        if self.owner is not None:
            self.owner.sync_entry()

    def log_rolled(self) -> None:
        """Tell the owner of a finished segment, which is to be flushed."""
        if self.owner is not None:
            self.owner.log_rolled(self.topic, self.partition)

    def log_start_raised(self) -> None:
        """Tell the owner of deleted records: a restart should not bring them back."""
        if self.owner is not None:
            self.owner.log_start_raised()


@contextmanager
def half_done() -> Iterator[None]:
    """A block that changes a part halfway, so a refusal within is as final as any other failure."""
    try:
        yield
    except DiskRefused as error:
        raise DiskError(error.directory, error.path, error.operation, error.errno, error.reason) from error
