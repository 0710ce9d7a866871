"""The sessions of members, and the time that each has to give partitions up. Soft state: a new coordinator begins it anew. PURE."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from odradek.data_plane.coordination.asking import Deadlines
from odradek.data_plane.groups.consumers.consumer_group import Member
from odradek.data_plane.groups.turn import Turn
from odradek.named_states import reached

__all__ = ["MemberTimers"]

Fence: TypeAlias = Callable[[Turn, str, str], None]
"""Removes a member, given the group and the member's id; does nothing where the member is gone."""
NEVER = float("inf")


class _Timers:
    """The timers of one member. Times in monotonic milliseconds."""

    __slots__ = ("checked_ms", "join", "revocation", "session_ends_ms", "sync")

    def __init__(self) -> None:
        self.session_ends_ms: float = NEVER
        self.checked_ms: float = NEVER
        """The time of the next check whether the session has ended; never later than its end."""
        self.revocation: object | None = None
        self.join: object | None = None
        self.sync: object | None = None


class MemberTimers:
    """The timers of all members of consumer groups, of one coordinator."""

    def __init__(self, deadlines: Deadlines, fence: Fence) -> None:
        self._deadlines = deadlines
        self._fence = fence
        self._members: dict[tuple[str, str], _Timers] = {}

    def __len__(self) -> int:
        return len(self._members)

    def renew_session(self, turn: Turn, group_id: str, member_id: str, timeout_ms: int) -> None:
        """Begin the member's session anew, from now on."""
        timers = self._of(group_id, member_id)
        self._end_session_at(group_id, member_id, timers, turn.now_ms + timeout_ms)

    def watch_revocation(
        self, turn: Turn, group_id: str, member_id: str, epoch: int, timeout_ms: int
    ) -> None:
        """Fence the member unless it has left this epoch within `timeout_ms`: it must give partitions up."""
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
        """Stop waiting for the member to give partitions up."""
        timers = self._members.get((group_id, member_id))
        if timers is not None:
            timers.revocation = None

    def watch_join(self, turn: Turn, group_id: str, member: Member) -> None:
        """Fence a member of the classic protocol unless it joins within its rebalance timeout from now on, or from an
        earlier call on.
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
        """Stop waiting for a JoinGroup."""
        self._of(group_id, member_id).join = None

    def watch_sync(self, turn: Turn, group_id: str, member: Member) -> None:
        """Fence a member of the classic protocol unless it syncs within its rebalance timeout."""
        timers = self._of(group_id, member.member_id)

        def expire(later: Turn) -> None:
            if timers.sync is token:
                reached("consumer_groups.classic_member_did_not_sync")
                self._fence(later, group_id, member.member_id)

        token = timers.sync = self._deadlines.at(turn.now_ms + member.profile.rebalance_timeout_ms, expire)

    def end_sync(self, group_id: str, member_id: str) -> None:
        """Stop waiting for a SyncGroup."""
        self._of(group_id, member_id).sync = None

    def forget(self, group_id: str, member_id: str) -> None:
        """Forget a member that is gone. Timers that still name it do nothing."""
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
