"""A follower as its leader sees it: the end of its log, and the time when it was last caught up. PURE."""

from __future__ import annotations

from typing import Protocol

UNKNOWN_OFFSET = -1
UNKNOWN_BROKER_EPOCH = -1


class Cursor(Protocol):
    """A port through which a leader marks one partition in a follower's fetch session."""

    @property
    def is_stirred(self) -> bool: ...

    @property
    def fetched_at_ms(self) -> int: ...

    def mark_dirty(self, *, wakes: bool) -> None: ...

    def call_back(self) -> None: ...


class RemoteReplica:
    """The state of one follower, as its leader knows it during its leadership. Times are monotonic
    milliseconds.
    """

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "cursor",
        "last_caught_up_ms",
        "last_fetch_leader_end_offset",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
        "stuck_at",
        "stuck_count",
    )

    def __init__(self, broker_id: int, last_caught_up_ms: int) -> None:
        """Begin with no fetch known. `last_caught_up_ms` is the present time for a member of the ISR, and 0
        (never) for any other replica.
        """
        self.broker_id = broker_id
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        self.log_start_offset = UNKNOWN_OFFSET
        self.log_end_offset = UNKNOWN_OFFSET
        self.last_fetch_leader_end_offset = UNKNOWN_OFFSET
        self.last_fetch_ms = 0
        self.last_caught_up_ms = last_caught_up_ms
        self.cursor: Cursor | None = None
        self.stuck_at = UNKNOWN_OFFSET
        self.stuck_count = 0

    def log_grew(self) -> None:
        """Called when the leader's log has grown. If the follower's cursor is clean, the follower had all
        records up to the former end of the log. Then the session's last fetch counts as a fetch at that end,
        even if it did not name this partition.
        """
        cursor = self.cursor
        if cursor is not None:
            if not cursor.is_stirred and cursor.fetched_at_ms > self.last_fetch_ms:
                self.last_fetch_ms = cursor.fetched_at_ms
                self.last_caught_up_ms = max(self.last_caught_up_ms, cursor.fetched_at_ms)
            cursor.mark_dirty(wakes=True)

    def follow_with(self, cursor: Cursor) -> None:
        """Notify this fetch session of changes of the log from now on.

        The follower's previous session is marked dirty, although it has usually ended. A leader that was
        paused may read a request of the old session after the first request of the new one. Then the old
        session must not keep changes from the new session.
        """
        before, self.cursor = self.cursor, cursor
        if before is not None and before is not cursor:
            before.mark_dirty(wakes=False)

    def note_fetch(self, offset: int, log_start_offset: int, leader_end_offset: int, now_ms: int) -> None:
        """Record a fetch at `offset`, which confirms that the follower has all records below `offset`.

        If `offset` is the leader's log end, the follower is caught up now. If `offset` reaches the log end
        that the leader had at the follower's last fetch, the follower was caught up at that fetch. So a
        follower under steady load, always one fetch behind, counts as caught up.
        """
        if offset >= leader_end_offset:
            caught_up_ms = now_ms
        elif offset >= self.last_fetch_leader_end_offset:
            caught_up_ms = self.last_fetch_ms
        else:
            caught_up_ms = 0
        if caught_up_ms > self.last_caught_up_ms:
            self.last_caught_up_ms = caught_up_ms
        self.log_start_offset = log_start_offset
        self.log_end_offset = offset
        if leader_end_offset > self.last_fetch_leader_end_offset:
            self.last_fetch_leader_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms

    def is_stuck(self, offset: int) -> bool:
        """Count repeated fetches at this offset although records lie after it. Returns True if the leader
        should search for the cause.

        The first repetition does not count, because the former fetch may have come before the leader had
        records. A second repetition may mean that the follower cannot use the answer. After that, True is
        returned each time that the number of repetitions has doubled.
        """
        if self.stuck_at != offset:
            self.stuck_at, self.stuck_count = offset, 1
            return False
        self.stuck_count += 1
        return self.stuck_count & (self.stuck_count - 1) == 0

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_ms_max: int) -> bool:
        """True if the follower has the whole log now, or had it at most `lag_ms_max` ago."""
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= lag_ms_max
