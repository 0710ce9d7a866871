"""Sessions of classic members: when each ends, and the timers that look. PURE.

A session belongs to the member, not to the group's protocol. A group that changes its protocol keeps the ends of all
sessions. Otherwise a silent member would stay for as long as other members change the protocol again and again. Apache
Kafka starts the sessions anew.

A session is soft state, so a new coordinator starts all sessions again. A member that waits in a rebalance sends
no heartbeats. Its session lasts until its request is answered, and goes on then.

Most sessions are renewed long before they end. So a renewal only notes the new end. The timer of the old end finds that
note, and sets itself again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from odradek.data_plane.coordination.asking import Deadlines
from odradek.data_plane.groups.classic_group import ClassicGroup, Member
from odradek.data_plane.groups.turn import Turn
from odradek.named_states import reached

__all__ = ["ClassicSessions"]

Lost: TypeAlias = Callable[[Turn, ClassicGroup, str], None]
"""A function that is called when the time of a member is over, given the turn, the group and the member id."""
NEVER = float("inf")


class ClassicSessions:
    """The sessions of the members of one coordinator's classic groups, and the time limits of pending members."""

    def __init__(self, deadlines: Deadlines, *, member_lost: Lost, pending_member_lost: Lost) -> None:
        self._deadlines = deadlines
        self._member_lost = member_lost
        self._pending_member_lost = pending_member_lost

    def renew(self, turn: Turn, group: ClassicGroup, member: Member) -> None:
        """Start the member's session again. It ends a session timeout from now."""
        self.end_in(turn, group, member, member.session_timeout_ms)

    def end_in(self, turn: Turn, group: ClassicGroup, member: Member, timeout_ms: float) -> None:
        """Let the member's session end `timeout_ms` from now."""
        self._end_at(group, member, turn.now_ms + timeout_ms)

    def resume(self, turn: Turn, group: ClassicGroup, ends_ms: Mapping[str, float]) -> None:
        """Continue the sessions of all members of a group that was a consumer group until now.

        `ends_ms` has the monotonic time in ms at which the session of each member ends. It is infinity for a member
        that joins in this turn, whose session starts now.
        """
        for member in group.members.values():
            latest_ms = turn.now_ms + member.session_timeout_ms
            self._end_at(group, member, min(ends_ms[member.member_id], latest_ms))

    def ends_ms(self, turn: Turn, group: ClassicGroup) -> Mapping[str, float]:
        """Return the monotonic time in ms at which each member's session ends, if all that wait are answered now."""
        return {
            each.member_id: turn.now_ms + each.session_timeout_ms if each.waits else each.deadline_ms
            for each in group.members.values()
        }

    def await_pending(self, turn: Turn, group: ClassicGroup, member_id: str, timeout_ms: int) -> None:
        """Give a pending member (KIP-394) `timeout_ms` to join with its new id."""
        deadline_ms = turn.now_ms + timeout_ms
        group.pending_members[member_id] = deadline_ms

        def expire(later: Turn) -> None:
            found_ms = group.pending_members.get(member_id)
            if found_ms is not None and found_ms <= later.now_ms and not group.is_gone:
                self._pending_member_lost(later, group, member_id)

        self._deadlines.at(deadline_ms, expire)

    def _end_at(self, group: ClassicGroup, member: Member, deadline_ms: float) -> None:
        member.deadline_ms = deadline_ms
        if deadline_ms < member.timer_ms:
            member.timer_ms = deadline_ms
            self._deadlines.at(deadline_ms, lambda turn: self._check(turn, group, member, deadline_ms))

    def _check(self, turn: Turn, group: ClassicGroup, member: Member, timer_ms: float) -> None:
        if member.is_gone or group.is_gone or member.timer_ms != timer_ms:
            reached("groups.old_session_timer_passed")
            return
        member.timer_ms = NEVER
        if member.deadline_ms > turn.now_ms:
            self._end_at(group, member, member.deadline_ms)
        elif member.waits and not member.is_new:
            self.renew(turn, group, member)
        else:
            self._member_lost(turn, group, member.member_id)
