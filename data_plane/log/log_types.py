"""The types of arguments and results of a partition's log, and the port (`LogOwner`) by which a log reports to
its directory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeVar

from odradek.env.ports import Dir, DiskError, DiskRefused, File

T = TypeVar("T")

METADATA_FILE_NAME = "partition.metadata"
NO_TOPIC_ID = bytes(16)


class Origin(IntEnum):
    """The kind of writer of an append. It decides whether the log assigns offsets, and which checks it makes."""

    CLIENT = 0
    """The writer is a producer. The log makes all checks and assigns offsets."""
    COORDINATOR = 1
    """The writer is a coordinator of this broker. The log assigns offsets, and control batches are allowed."""
    REPLICA = 2
    """The writer is a follower that has fetched from its leader. It appends one or more batches, which keep
    their offsets.
    """
    RAFT = 3
    """The writer is the metadata quorum. It appends one or more batches, which have offsets and epochs from the
    quorum.
    """


class AppendResult(NamedTuple):
    """The result of an append. `log_append_time_ms` is -1 unless the topic has timestamp type LogAppendTime.
    For a duplicate, `log_append_time_ms` is the newest timestamp of the batch that was appended before.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    leader_epoch: int
    duplicate: bool


class LogRead:
    """The result of a read: `count` bytes of whole batches, from `position` of the pinned `file` on. If the
    read found no bytes, `file` is None.

    The next read begins at `next_offset`. The receiver must call `release` once, or pass the file to another
    owner that does.
    """

    __slots__ = ("count", "file", "next_offset", "position")

    def __init__(self, file: File | None, position: int, count: int, next_offset: int) -> None:
        self.file = file
        self.position = position
        self.count = count
        self.next_offset = next_offset

    def release(self) -> None:
        if self.file is not None:
            self.file.unpin()
            self.file = None


class FileRange:
    """A range of a pinned file that a response sends without reading the bytes into memory: a spill, in the
    terms of `odradek.wire.codec`.
    """

    __slots__ = ("count", "file", "position")

    def __init__(self, file: File, position: int, count: int) -> None:
        self.file = file
        self.position = position
        self.count = count

    def __len__(self) -> int:
        return self.count

    def release(self) -> None:
        self.file.unpin()


class LogOwner(Protocol):
    """A port to the directory of the log: receives the log's reports, and provides services to it."""

    @property
    def small_files(self) -> AbstractContextManager[object]:
        """Return the lock that a writer holds while it replaces a small file (blocking)."""

    def change(
        self, work: Callable[[], T], end: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Let the disk's thread do `work`, then call `end` with the result on the loop. The loop waits a
        limited time for the thread.

        Raises the errors of `work`, and `DiskHung`. If `DiskHung.goes_on` is true, the work continues. Then
        `end` or `failed` is called when the device has answered, before the loop calls the device again.
        """

    def disk_failed(self, error: DiskError) -> None:
        """Take the directory offline, since an operation on its disk has failed permanently."""

    def disk_refused(self, error: DiskRefused) -> None:
        """Record that an operation failed because of too little space or too few descriptors. It changed
        nothing and may be tried again.
        """

    def recovery_point_lowered(self, topic: str, partition: int, offset: int) -> None:
        """Write the lower recovery point to the checkpoint, before bytes below the previous recovery point are
        rewritten (blocking).
        """

    def remove_later(self, topic: str, partition: int, directory: Dir, names: list[str]) -> None:
        """Remove these files of a log's directory after `file.delete.delay.ms`."""

    def resources_short(self) -> None:
        """Release descriptors and memory, because the process is short of them. Called on the loop and in
        workers.
        """

    def flush_failed(self, error: DiskError) -> None:
        """Store an error of a worker thread; the loop then handles it as `disk_failed` does."""

    def log_start_raised(self) -> None:
        """Write the checkpoint of log start offsets soon. Called after records were deleted on request, so
        that a restart does not restore them.
        """

    def cleaner_offset_moved(self, topic: str, partition: int, *, durably: bool) -> None:
        """Record a log's new first dirty offset. With `durably`, return only when it is on disk (blocking)."""

    def log_rolled(self, topic: str, partition: int) -> None:
        """Called when a segment is finished, so that it is flushed soon."""

    def sync_entry(self) -> None:
        """Sync the entry of the log's directory in its parent, so that it survives a loss of power
        (blocking).
        """
