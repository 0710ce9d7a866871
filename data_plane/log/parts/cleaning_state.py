"""The state of a log's cleaning: its first dirty offset, and the pass that is running.

All records below the first dirty offset have been cleaned. So the next pass maps keys only from that offset
on. The checkpoint `cleaner-offset-checkpoint` stores the offset on disk. A truncation to a lower offset first
lowers the checkpoint, durably. Otherwise records that are appended there later would count as cleaned.
"""

from __future__ import annotations

import attrs

from odradek.data_plane.log.parts.log_home import LogHome

NEVER_CLEANED = -1


@attrs.frozen
class PassReport:
    """The figures of the last complete pass over a log."""

    ended_ms: int
    """The time at which the pass ended, in wall-clock milliseconds."""
    seconds: float
    bytes_before: int
    """The size in bytes of the segments that the pass has rewritten."""
    bytes_after: int
    records_read: int
    records_kept: int
    keyless_records: int
    """The number of dirty records without a key, which were removed."""


@attrs.define(eq=False)
class PassToken:
    """The identity of one pass over a log. Only the pass that holds the log's current token may swap
    segments.
    """

    abort_reason: str | None = None
    """The reason why the pass must end early. The loop may set it while a worker reads it."""


class CleaningState:
    """The first dirty offset and the running pass of one log. Only the loop changes it."""

    __slots__ = (
        "_home",
        "first_dirty_offset",
        "is_held",
        "is_unsaved",
        "last_pass",
        "passes_failed",
        "retry_at",
        "token",
        "uncleanable_reason",
    )

    def __init__(self, home: LogHome, first_dirty_offset: int) -> None:
        self._home = home
        self.first_dirty_offset = first_dirty_offset
        """The first dirty offset in the checkpoint; NEVER_CLEANED if there is none. It may be below the log
        start offset.
        """
        self.is_unsaved = False
        """True if a truncation has lowered the first dirty offset, and the checkpoint on disk may still have
        the higher value.
        """
        self.token: PassToken | None = None
        self.is_held = False
        """True while the replica moves to another disk. No pass may begin then, because it would change
        records that are already in the replica's copy (Kafka's rule).
        """
        self.uncleanable_reason: str | None = None
        """The reason why passes over this log fail permanently; None if there is no such reason. After a
        restart, passes are tried again.
        """
        self.last_pass: PassReport | None = None
        self.passes_failed = 0
        """The number of passes that have failed since the last complete one, for a reason that may be
        temporary.
        """
        self.retry_at = 0.0
        """The monotonic time in seconds before which no new pass is tried."""

    def settle(self, log_start_offset: int, log_end_offset: int) -> None:
        """Compare the checkpoint with the log at the start. If the checkpoint is beyond the log's end, the
        whole log counts as dirty (Kafka's rule).
        """
        if self.first_dirty_offset > log_end_offset:
            self.first_dirty_offset = log_start_offset
            self._home.cleaner_offset_moved(durably=False)

    def begin(self) -> PassToken:
        """Begin a pass and return its token. Raises `AssertionError` if another pass is running."""
        if self.token is not None:
            raise AssertionError(f"{self._home}: a second cleaning pass begins while the first is under way")
        self.token = PassToken()
        return self.token

    def abort(self, reason: str) -> None:
        """End the running pass, if any, so that it swaps no more segments. If there are several reasons, the
        first is kept.
        """
        token = self.token
        if token is not None and token.abort_reason is None:
            token.abort_reason = reason

    def end(self, token: PassToken) -> None:
        """End the pass that holds this token."""
        if self.token is not token:
            raise AssertionError(f"{self._home}: a cleaning pass ended that was not under way")
        self.token = None

    def advance(self, first_dirty_offset: int) -> None:
        """Raise the first dirty offset, because all records below it have been cleaned."""
        self.first_dirty_offset = first_dirty_offset
        self._home.cleaner_offset_moved(durably=False)

    def cut(self, offset: int) -> None:
        """Called before the log is truncated at `offset`. Ends the pass, and makes later records count as
        dirty.
        """
        self.abort("the log was truncated")
        if self.first_dirty_offset > offset:
            self.first_dirty_offset = offset
            self.is_unsaved = True

    def save_lowered(self) -> None:
        """Write the first dirty offset to its checkpoint if a truncation has lowered it (blocking). Raises
        `DiskError`.
        """
        if self.is_unsaved:
            self._home.cleaner_offset_moved(durably=True)
            self.is_unsaved = False
