"""Timers of members: the session, and the time limits for revoking partitions, JoinGroup and SyncGroup.

The timers are soft state, so a new coordinator starts them again. PURE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from odradek.data_plane.coordination.asking import Deadlines
from odradek.data_plane.groups.consumers.consumer_group import Member
from odradek.data_plane.groups.turn import Turn
from odradek.named_states import reached

__all__ = ["MemberTimers"]

Fence: TypeAlias = Callable[[Turn, str, str], None]
"""A function that removes a member, given the turn, the group id and the member id. It does nothing if the
member is gone.
"""
NEVER = float("inf")


class _Timers:
    """The timers of one member. All times are monotonic milliseconds."""

    __slots__ = ("checked_ms", "join", "revocation", "session_ends_ms", "sync")

    def __init__(self) -> None:
        self.session_ends_ms: float = NEVER
        self.checked_ms: float = NEVER
        """The time of the next check whether the session has ended. It is never later than the end of the
        session.
        """
        self.revocation: object | None = None
        self.join: object | None = None
        self.sync: object | None = None


class MemberTimers:
    """The timers of the members of all consumer groups of one coordinator."""

    def __init__(self, deadlines: Deadlines, fence: Fence) -> None:
        self._deadlines = deadlines
        self._fence = fence
        self._members: dict[tuple[str, str], _Timers] = {}

    def __len__(self) -> int:
        return len(self._members)

    def renew_session(self, turn: Turn, group_id: str, member_id: str, timeout_ms: int) -> None:
        """Start the member's session again. It ends `timeout_ms` from now."""
        timers = self._of(group_id, member_id)
        self._end_session_at(group_id, member_id, timers, turn.now_ms + timeout_ms)

    def session_ends_ms(self, group_id: str, member_id: str) -> float:
        """Return the monotonic time in ms at which the member's session ends; infinity if it has not begun."""
        timers = self._members.get((group_id, member_id))
        return NEVER if timers is None else timers.session_ends_ms

    def resume_session(self, group_id: str, member_id: str, ends_ms: float) -> None:
        """Continue a session that began while the group was a classic group. It ends at the monotonic time
        `ends_ms`.
        """
        self._end_session_at(group_id, member_id, self._of(group_id, member_id), ends_ms)

    def watch_revocation(
        self, turn: Turn, group_id: str, member_id: str, epoch: int, timeout_ms: int
    ) -> None:
        """Start the time limit for revoking partitions. The member is fenced if it still has this epoch after
        `timeout_ms`.
        """
        timers = self._of(group_id, member_id)

        def expire(later: Turn) -> None:
            if timers.revocation is not token:
                reached("consumer_groups.old_revocation_timer_passed")
                return
            timers.revocation = None
            group = later.state.consumers.get(group_id)
            member = None if group is None else group.members.get(member_id)
            if member is not None and member.epoch == epoch:
                reached("consumer_groups.member_fenced_for_slow_revocation")
                self._fence(later, group_id, member_id)

        token = timers.revocation = self._deadlines.at(turn.now_ms + timeout_ms, expire)

    def end_revocation(self, group_id: str, member_id: str) -> None:
        """Cancel the member's time limit for revoking partitions."""
        timers = self._members.get((group_id, member_id))
        if timers is not None:
            timers.revocation = None

    def watch_join(self, turn: Turn, group_id: str, member: Member) -> None:
        """Start the time limit for the next JoinGroup of a classic-protocol member. The limit is the member's
        rebalance timeout. If such a limit already runs, nothing changes.
        """
        timers = self._of(group_id, member.member_id)
        if timers.join is None:

            def expire(later: Turn) -> None:
                if timers.join is token:
                    reached("consumer_groups.classic_member_did_not_join")
                    self._fence(later, group_id, member.member_id)

            token = timers.join = self._deadlines.at(
                turn.now_ms + member.profile.rebalance_timeout_ms, expire
            )

    def end_join(self, group_id: str, member_id: str) -> None:
        """Cancel the member's time limit for JoinGroup."""
        self._of(group_id, member_id).join = None

    def watch_sync(self, turn: Turn, group_id: str, member: Member) -> None:
        """Start the time limit for the SyncGroup of a classic-protocol member. The limit is the member's
        rebalance timeout. A member that exceeds it is fenced.
        """
        timers = self._of(group_id, member.member_id)

        def expire(later: Turn) -> None:
            if timers.sync is token:
                reached("consumer_groups.classic_member_did_not_sync")
                self._fence(later, group_id, member.member_id)

        token = timers.sync = self._deadlines.at(turn.now_ms + member.profile.rebalance_timeout_ms, expire)

    def end_sync(self, group_id: str, member_id: str) -> None:
        """Cancel the member's time limit for SyncGroup."""
        self._of(group_id, member_id).sync = None

    def forget(self, group_id: str, member_id: str) -> None:
        """Drop the timers of a member that is gone. Deadlines that were set for this member then do nothing."""
        timers = self._members.pop((group_id, member_id), None)
        if timers is not None:
            timers.revocation = timers.join = timers.sync = None
            timers.checked_ms = NEVER

    def _of(self, group_id: str, member_id: str) -> _Timers:
        return self._members.setdefault((group_id, member_id), _Timers())

    def _end_session_at(self, group_id: str, member_id: str, timers: _Timers, ends_ms: float) -> None:
        timers.session_ends_ms = ends_ms
        if ends_ms < timers.checked_ms:
            timers.checked_ms = ends_ms
            self._deadlines.at(
                ends_ms, lambda turn: self._check_session(turn, group_id, member_id, timers, ends_ms)
            )

    def _check_session(
        self, turn: Turn, group_id: str, member_id: str, timers: _Timers, checked_ms: float
    ) -> None:
        if timers.checked_ms != checked_ms:
            reached("consumer_groups.old_session_timer_passed")
            return
        timers.checked_ms = NEVER
        if timers.session_ends_ms > turn.now_ms:
            self._end_session_at(group_id, member_id, timers, timers.session_ends_ms)
        else:
            reached("consumer_groups.session_ended")
            self.forget(group_id, member_id)
            self._fence(turn, group_id, member_id)
