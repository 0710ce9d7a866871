"""The state that all parts of a log share: directory, owner, condition; when appends are refused, which errors
take the log directory offline.

A failed operation takes the log and its log directory offline, with these exceptions:

- a lack of room or descriptors, or a device that does not answer (`DiskRefused`), unless it happened in a
  sync;
- a worker's call on a file that the loop has closed meanwhile;
- a missing file of a log that was closed meanwhile.

A change of a log's files is one step on the disk's thread. The loop waits for the step a limited time
(`change`, or `Dir.in_time` for steps that can be undone). If the step takes longer, the log becomes
*unsettled*, and refuses everything while the step continues. When the step is done, the loop updates the state
in memory, which then agrees with the files again.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

from odradek.data_plane.log.log_types import LogOwner
from odradek.data_plane.log.segments.small_files import remove_if_present
from odradek.env.ports import (
    Dir,
    DiskError,
    DiskFull,
    DiskHung,
    DiskRefused,
    FileClosed,
    FileMissing,
    ResourcesShort,
)
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition

T = TypeVar("T")


class LogHome:
    """The state that all parts of a log share: its directory, its owner, its condition. `owner` is None for a
    log outside of a log directory.
    """

    __slots__ = (
        "_has_failed",
        "directory",
        "is_broken",
        "is_closed",
        "is_short",
        "is_stalled",
        "is_unsettled",
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
        """True while appends and reads are refused: after a failure, while the device hangs, or after the log
        was closed.
        """
        self.is_short = False
        """True while the disk has no free room except its reserve (`odradek.data_plane.log.directory.room`).
        """
        self.refuses_appends = False
        """True while `check_append` would refuse an append for any reason. The hot path reads only this flag.
        """
        self.is_closed = False
        self.is_broken = False
        """True after a bug in the middle of an append. The log can then be read, but refuses appends until the
        next start.
        """
        self._has_failed = False
        self.is_stalled = False
        """True while the device does not answer."""
        self.is_unsettled = False
        """True while a change of the log's files continues, although the loop no longer waits for it."""

    def __str__(self) -> str:
        return str(self.key)

    @property
    def topic(self) -> str:
        return self.key.topic

    @property
    def partition(self) -> int:
        return self.key.partition

    # --- the condition of the log

    def _judge(self) -> None:
        self.offline = self._has_failed or self.is_closed or self.is_stalled or self.is_unsettled
        self.refuses_appends = self.offline or self.is_short or self.is_broken

    def set_short(self, is_short: bool) -> None:
        """Begin or stop refusing records. `is_short` is true if the disk has no free room except its reserve."""
        self.is_short = is_short
        self._judge()

    def check_append(self, *, may_use_reserve: bool) -> None:
        """Raise `KafkaError` KAFKA_STORAGE_ERROR while offline or broken. Raise `DiskFull` for records that
        must not use the reserve, while only the reserve is free.
        """
        if self.offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory of this partition is offline")
        if self.is_broken:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                "a bug interrupted an earlier append to this log: restart the node, so that it reads the log again",
            )
        if self.is_short and not may_use_reserve:
            path = self.directory.path
            error = DiskFull(path, path, "append", errno.ENOSPC, "only the reserve of the disk is left")
            self.refused(error)
            raise error

    def check_answers(self) -> None:
        """Raise `KafkaError` KAFKA_STORAGE_ERROR while the device does not answer, because the loop would
        have to wait for it.
        """
        if self.is_stalled or self.is_unsettled:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, "the disk of this partition's log does not answer"
            )

    def stall(self) -> None:
        """Refuse appends, reads and truncations until `resume`, because the device does not answer."""
        self.is_stalled = True
        self._judge()

    def resume(self) -> None:
        """Stop refusing, because the device answers again. A log that has failed, or was closed meanwhile,
        continues to refuse.
        """
        self.is_stalled = False
        self._judge()

    def break_down(self) -> None:
        """Refuse appends until the next start, because a bug has left the parts of the log inconsistent."""
        self.is_broken = True
        self._judge()

    def close(self) -> None:
        """End appends and reads permanently."""
        self.is_closed = True
        self._judge()

    # --- changes of the files

    def change(
        self,
        work: Callable[[], T],
        finish: Callable[[T], None],
        leave: Callable[[T], None] = lambda result: None,
        undone: Callable[[], None] = lambda: None,
    ) -> None:
        """Change the log's files by `work`, then its state in memory by `finish`, which runs on the loop.

        The disk's thread may run `work` (`Dir.in_time`). So `work` must not change state of the log that the
        loop may read meanwhile. Call `change` on the loop, or for a log whose owner has no loop. Raises the
        errors of `work`, and `DiskHung`.

        After `DiskHung` there are two cases. Either the work was not begun, or it continues, and the log is
        unsettled until the work ends. If the log is closed meanwhile, `leave` is called instead of `finish`;
        it must close the files that `work` has opened. If the work fails or is not begun, `undone` is called,
        perhaps later.
        """

        def end(result: T) -> None:
            self.settle()
            if self.is_closed:
                leave(result)
            else:
                finish(result)

        def failed(error: Exception) -> None:
            self.settle()
            undone()
            self._report(error)

        owner = self.owner
        try:
            if owner is None:
                finish(work())
            else:
                owner.change(work, end, failed)
        except DiskHung as error:
            if error.goes_on:
                self.unsettle()
            else:
                undone()
            raise
        except KafkaError as error:
            undone()
            self._report(error)
            raise
        except DiskError:
            undone()
            raise

    def unsettle(self) -> None:
        """Refuse everything while a change of the files continues."""
        self.is_unsettled = True
        self._judge()

    def settle(self) -> None:
        """Stop refusing, because the change of the files has ended."""
        self.is_unsettled = False
        self._judge()

    def _report(self, error: Exception) -> None:
        """Report the error of a change to the owner. A `DiskError` means that the disk has failed. The
        `KafkaError` of `needing_room` means that the disk has no room.
        """
        if isinstance(error, DiskError):
            self.failed(error)
        elif not isinstance(error, KafkaError):
            raise error
        elif isinstance(error.__cause__, DiskRefused):
            self.refused(error.__cause__)

    # --- failures

    @contextmanager
    def reporting_failures(self) -> Iterator[None]:
        """Report disk errors that are raised inside the `with` block to the owner, on the loop."""
        try:
            yield
        except DiskError as error:
            self.failed(error)
            raise

    def failed(self, error: DiskError) -> None:
        """Take the directory offline after a failed operation, unless the failure may be temporary or the log
        was closed meanwhile.
        """
        if isinstance(error, DiskRefused):
            self.refused(error)
        if not self._is_harmless(error):
            self.give_up(error)

    def failed_in_worker(self, error: DiskError) -> None:
        """Handle a failed operation as `failed` does, in a worker. The loop takes the directory offline at
        its next check.
        """
        if not self._is_harmless(error):
            self._fail()
            if self.owner is not None:
                self.owner.flush_failed(error)

    def refused(self, error: DiskRefused) -> None:
        """Report to the owner that the disk lacks room or the process lacks descriptors."""
        if self.owner is not None:
            self.owner.disk_refused(error)

    def give_up(self, error: DiskError) -> None:
        """Take the log and its directory offline, because of this error."""
        self._fail()
        if self.owner is not None:
            self.owner.disk_failed(error)

    def _fail(self) -> None:
        self._has_failed = True
        self._judge()

    def is_overtaken(self, error: DiskError) -> bool:
        """True if a worker's error only means that the loop has closed, removed or renamed its files
        meanwhile.
        """
        return isinstance(error, FileClosed) or (self.is_closed and isinstance(error, FileMissing))

    def _is_harmless(self, error: DiskError) -> bool:
        """True if room or descriptors were short, or the log was closed meanwhile. The device itself has not
        failed then. A refused sync does count as a failure.
        """
        if isinstance(error, ResourcesShort) and self.owner is not None:
            self.owner.resources_short()
        return (isinstance(error, DiskRefused) and error.operation != "sync") or self.is_overtaken(error)

    # --- services of the owner

    def save_recovery_point(self, offset: int) -> None:
        """Write the recovery point `offset` to its checkpoint (blocking). All records below `offset` must be
        on the device. Raises `DiskError`.
        """
        if self.owner is not None:
            self.owner.recovery_point_lowered(self.topic, self.partition, offset)

    def cleaner_offset_moved(self, *, durably: bool) -> None:
        """Report a new first dirty offset to the owner. With `durably`, return when it is in the checkpoint
        (blocking). Raises `DiskError`.
        """
        if self.owner is not None:
            self.owner.cleaner_offset_moved(self.topic, self.partition, durably=durably)

    def remove_later(self, names: list[str]) -> None:
        """Remove files of the log after a delay, since other tasks may be opening them. Removes them at once
        if the log has no owner.
        """
        if self.owner is not None:
            self.owner.remove_later(self.topic, self.partition, self.directory, names)
        else:
            for name in names:
                remove_if_present(self.directory, name)

    def small_files(self) -> AbstractContextManager[object]:
        """Return the lock that a writer holds while it replaces a small file of the log."""
        return nullcontext() if self.owner is None else self.owner.small_files

    def sync_entry(self) -> None:
        """Sync the entry of the log's directory in its parent, so that it survives a loss of power
        (blocking).
        """
        if self.owner is not None:
            self.owner.sync_entry()

    def log_rolled(self) -> None:
        """Report to the owner that a segment is finished, so that it is flushed."""
        if self.owner is not None:
            self.owner.log_rolled(self.topic, self.partition)

    def log_start_raised(self) -> None:
        """Report to the owner that records were deleted, so that a restart does not restore them."""
        if self.owner is not None:
            self.owner.log_start_raised()


@contextmanager
def needing_room() -> Iterator[None]:
    """Raise `KafkaError` KAFKA_STORAGE_ERROR if the disk refuses a step in the `with` block. Used for the
    first steps of a truncation, before anything is removed.
    """
    try:
        yield
    except DiskRefused as error:
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"the disk has no room for a truncation: {error}"
        ) from error


@contextmanager
def half_done() -> Iterator[None]:
    """Treat a refusal inside the `with` block as a failure of the disk (`DiskError`), because a change of the
    files would remain half done.
    """
    try:
        yield
    except DiskRefused as error:
        raise DiskError(error.directory, error.path, error.operation, error.errno, error.reason) from error
