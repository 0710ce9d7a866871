"""Types of the arguments and results of a partition's log."""

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
    """The kind of writer that appends: it decides whether offsets are assigned here, and which checks are made."""

    CLIENT = 0
    """A producer: all checks are made, offsets are assigned."""
    COORDINATOR = 1
    """An append of this broker's own coordinators: offsets are assigned, control batches are allowed."""
    REPLICA = 2
    """Records from the leader: one or more batches with their offsets."""
    RAFT = 3
    """The quorum's log: offsets and epochs are assigned by the quorum."""


class AppendResult(NamedTuple):
    """The result of an append. `log_append_time_ms` is -1 unless the log stamps batches; for a duplicate it is the
    newest time of the first batch.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    leader_epoch: int
    duplicate: bool


class LogRead:
    """The result of a read: `count` bytes of whole batches at `position` of `file`, which is pinned; or nothing.

    `next_offset` is where to read on. Its receiver calls `release` once (or hands the pin on).
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
    """Bytes of a pinned file that a response sends without reading them into memory. A spill for
    `odradek.wire.codec`.
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
    """A port to the log's directory: it receives the log's reports, and provides services to the log."""

    @property
    def small_files(self) -> AbstractContextManager[object]:
        """The lock that a writer holds while it replaces a small file (blocking)."""

    def change(
        self, work: Callable[[], T], end: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Let the disk do `work`, and call `end` with its result on the loop. The loop waits for a bounded time.
        Raises the errors of `work`, and `DiskHung`. If `DiskHung` says that the work goes on, `end` or `failed` is
        called when the device has answered, before any other call to it.
        """

    def disk_failed(self, error: DiskError) -> None:
        """Take the directory offline, since an operation failed for good."""

    def disk_refused(self, error: DiskRefused) -> None:
        """Note that an operation failed for want of space or descriptors. It changed nothing and may be tried again."""

    def recovery_point_lowered(self, topic: str, partition: int, offset: int) -> None:
        """Make the recovery point durable before data below the old one is rewritten (blocking)."""

    def remove_later(self, topic: str, partition: int, directory: Dir, names: list[str]) -> None:
        """Remove these files of the log's directory after `file.delete.delay.ms`."""

    def resources_short(self) -> None:
        """Give up descriptors and memory, because the process is short of them (called on the loop, and in
        workers).
        """

    def flush_failed(self, error: DiskError) -> None:
        """Store an error from a worker's thread; the loop then handles it as `disk_failed` does."""

    def log_start_raised(self) -> None:
        """Write the checkpoint after records were deleted on request, so that a restart does not bring them back."""

    def cleaner_offset_moved(self, topic: str, partition: int, *, durably: bool) -> None:
        """Note a log's new first dirty offset; with `durably`, make it durable before this returns (blocking)."""

    def log_rolled(self, topic: str, partition: int) -> None:
        """Report a finished segment, which is to be flushed."""

    def sync_entry(self) -> None:
        """Make the log's directory itself durable (blocking)."""
