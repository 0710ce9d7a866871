"""Members of classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, the rebalances that they start,
static members. PURE.

Theory of operation
-------------------
A rebalance begins when a member joins, changes its metadata, leaves or is lost. It has two halves. In the
first half the coordinator collects JoinGroups. It waits until all known members have joined, but no longer
than the longest rebalance timeout among them. A dynamic member that has not joined by then is removed. A
static member stays until its session ends. A group that was empty waits `group.initial.rebalance.delay.ms`
for further members. Then all JoinGroups are answered with the new generation; the leader also gets the
metadata of all members. In the second half the leader sends the assignments with its SyncGroup. The
coordinator writes the assignments to the log. When they are committed, it answers the waiting SyncGroups.

Rules
* A dynamic member first gets an id and joins with it again (KIP-394, from version 4). Until the second join
  it is pending, and a rebalance waits for it as for a member.
* A static member (KIP-345) that joins without a member id replaces its old entry. In a stable group whose
  chosen protocol stays the same, the other members do not notice the replacement. But if the replaced member
  still had to join once more, to give up partitions (KIP-429), a rebalance begins. Apache Kafka does not make
  this exception.
* Sessions end as `classic_sessions.py` says.
* Every check is in Kafka's order, since clients see which error comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from odradek.data_plane.coordination.asking import Ask, Deadlines
from odradek.data_plane.groups.classic_group import ClassicGroup, GroupPhase, Member, Protocols
from odradek.data_plane.groups.classic_responses import (
    UNKNOWN_MEMBER,
    assigned,
    join_refused,
    joined,
    joined_again,
    sync_refused,
)
from odradek.data_plane.groups.classic_sessions import ClassicSessions
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.groups.record_sizes import group_bytes, has_too_long_id, protocols_bytes, stem_of
from odradek.data_plane.groups.records import group_metadata_record
from odradek.data_plane.groups.turn import Turn
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from odradek.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from odradek.wire.messages.sync_group import SyncGroupRequest
from odradek.wire.primitives import INT32_MAX
from odradek.wire.schema.versions import (
    JOIN_GROUP_MEMBER_ID_REQUIRED,
    JOIN_GROUP_REBALANCE_TIMEOUT,
    LEAVE_GROUP_MEMBERS,
)

__all__ = ["LeaveMembers", "Membership"]

STATIC_WAIT_MS_MIN = 1_000
"""The shortest time, in milliseconds, after which a rebalance that no member has joined is checked again. A
lower limit is needed, because the members' rebalance timeout may be 0.
"""
PREPARING, COMPLETING = GroupPhase.PREPARING_REBALANCE, GroupPhase.COMPLETING_REBALANCE
EMPTY, STABLE = GroupPhase.EMPTY, GroupPhase.STABLE


@attrs.frozen
class LeaveMembers:
    """A LeaveGroup with very many members.

    The answer is an error code and, if this code is NONE, one more code for each member.
    """

    group_id: str
    members: Sequence[MemberIdentity]


class Membership:
    """The classic groups of one coordinator, with the decisions on JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

    def __init__(self, settings: GroupSettings, deadlines: Deadlines) -> None:
        self._settings = settings
        self._deadlines = deadlines
        self._sessions = ClassicSessions(
            deadlines, member_lost=self._lose, pending_member_lost=self._lose_pending
        )
        self.groups: dict[str, ClassicGroup] = {}
        """The groups in memory: all groups with members, and other groups that requests have named."""

    def find(self, turn: Turn, group_id: str) -> ClassicGroup | None:
        """Return the classic group from memory, or else restore it from its record. Returns None if it does
        not exist or is a consumer group.
        """
        group = self.groups.get(group_id)
        if group is None and turn.state.has_classic_group(group_id):
            group = ClassicGroup.restore(group_id, turn.state.metadata.get(group_id))
            self.groups[group_id] = group
        return group

    def restore(self, turn: Turn) -> None:
        """Load the groups from the log's state. Members keep their ids, and their sessions start now.

        A group that has become too large for `group.max.size` begins a rebalance.
        """
        for group_id in sorted(turn.state.metadata):
            self._restore_members(turn, group_id)

    def _restore_members(self, turn: Turn, group_id: str) -> None:
        stored = turn.state.metadata.get(group_id)
        if stored is None or not stored.members:
            return
        group = self.groups[group_id] = ClassicGroup.restore(group_id, stored)
        for member in group.members.values():
            self._sessions.renew(turn, group, member)
        if len(group.members) > self._settings.group_size_max:
            self._prepare_rebalance(turn, group)

    def begin_anew(self, turn: Turn, group_id: str, code: ErrorCode) -> None:
        """Reset the group to its state in the log. Requests that wait get `code`."""
        if group_id in self.groups:
            self._drop(turn, group_id, code)
        self._restore_members(turn, group_id)

    def _drop(self, turn: Turn, group_id: str, code: ErrorCode) -> None:
        """Remove the group from memory. Its members' waiting requests get `code`."""
        group = self.groups[group_id]
        self.forget_group(group_id)
        for member in group.members.values():
            turn.answer(member.join_reply, join_refused(UNKNOWN_MEMBER, code, 0))
            turn.answer(member.sync_reply, sync_refused(code))

    def hand_over(self, turn: Turn, group_id: str) -> Mapping[str, float]:
        """Remove a classic group that a consumer group has replaced.

        Members whose requests wait are answered so that they join again. Returns the monotonic time in ms at
        which the session of each member ends. A member that is answered gets a new session.
        """
        group = self.groups.get(group_id)
        if group is None:
            return {}
        ends_ms = self._sessions.ends_ms(turn, group)
        self._drop(turn, group_id, ErrorCode.REBALANCE_IN_PROGRESS)
        return ends_ms

    def take_over(
        self, turn: Turn, group: ClassicGroup, ends_ms: Mapping[str, float], *, rebalances: bool
    ) -> None:
        """Add a stable group that was a consumer group until now. The caller writes the group's record.

        `ends_ms` is as for `ClassicSessions.resume`.
        """
        self.groups[group.group_id] = group
        self._sessions.resume(turn, group, ends_ms)
        if rebalances:
            self._prepare_rebalance(turn, group)

    def forget_group(self, group_id: str) -> None:
        """Remove a deleted group from memory. Timers that still refer to it do nothing."""
        group = self.groups.pop(group_id, None)
        if group is not None:
            group.is_gone = True

    # -- JoinGroup ------------------------------------------------------------------------------------------------

    def refuse_join(self, ask: Ask, request: JoinGroupRequest) -> JoinGroupResponse | None:
        """Check the fields of a JoinGroup that are independent of the group.

        Returns the error response, or None if they are valid.
        """
        settings = self._settings
        member_id = request.member_id
        if not request.group_id:
            return join_refused(member_id, ErrorCode.INVALID_GROUP_ID, ask.version)
        if (
            not settings.session_timeout_ms_min
            <= request.session_timeout_ms
            <= settings.session_timeout_ms_max
        ):
            return join_refused(member_id, ErrorCode.INVALID_SESSION_TIMEOUT, ask.version)
        if has_too_long_id(ask.client_id, request):
            return join_refused(UNKNOWN_MEMBER, ErrorCode.UNKNOWN_SERVER_ERROR, ask.version)
        if protocols_bytes(request) > settings.append_bytes_max:
            return join_refused(member_id, ErrorCode.UNKNOWN_SERVER_ERROR, ask.version)
        return None

    def join(self, turn: Turn, ask: Ask) -> None:
        """Handle a JoinGroup that has passed `refuse_join`."""
        request: JoinGroupRequest = ask.request
        member_id = request.member_id
        group = self.find(turn, request.group_id)
        if group is None:
            if member_id != UNKNOWN_MEMBER:
                return turn.answer(
                    ask.reply, join_refused(member_id, ErrorCode.UNKNOWN_MEMBER_ID, ask.version)
                )
            group = ClassicGroup(request.group_id)
            group.state_timestamp_ms = turn.wall_ms
            self.groups[group.group_id] = group
            turn.records.append(group_metadata_record(group.group_id, group.stored()))
        if not self._has_room(group, member_id):
            group.remove(member_id)
            return turn.answer(
                ask.reply, join_refused(UNKNOWN_MEMBER, ErrorCode.GROUP_MAX_SIZE_REACHED, ask.version)
            )
        if not group.supports_protocols(request.protocol_type, [each.name for each in request.protocols]):
            return turn.answer(
                ask.reply, join_refused(member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ask.version)
            )
        if member_id == UNKNOWN_MEMBER:
            self._join_new(turn, group, ask, request)
        else:
            self._join_known(turn, group, ask, request)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        size_max = self._settings.group_size_max
        if group.phase is EMPTY:
            return True
        member = group.members.get(member_id)
        if group.phase is PREPARING:
            return (member is not None and member.join_reply is not None) or group.awaiting_join < size_max
        return member is not None or len(group.members) < size_max

    def _join_new(self, turn: Turn, group: ClassicGroup, ask: Ask, request: JoinGroupRequest) -> None:
        instance_id = request.group_instance_id
        member_id = f"{stem_of(ask.client_id, request)}-{_dashed(turn.new_uuid())}"
        if instance_id is not None:
            if instance_id in group.static_members:
                self._replace_static(turn, group, ask, request, member_id)
            else:
                self._add(turn, group, ask, request, member_id)
        elif ask.version >= JOIN_GROUP_MEMBER_ID_REQUIRED:
            self._sessions.await_pending(turn, group, member_id, request.session_timeout_ms)
            turn.answer(ask.reply, join_refused(member_id, ErrorCode.MEMBER_ID_REQUIRED, ask.version))
        else:
            self._add(turn, group, ask, request, member_id)

    def _join_known(self, turn: Turn, group: ClassicGroup, ask: Ask, request: JoinGroupRequest) -> None:
        member_id, instance_id = request.member_id, request.group_instance_id
        if member_id in group.pending_members:
            if instance_id is not None:
                code = ErrorCode.UNKNOWN_SERVER_ERROR
                return turn.answer(ask.reply, join_refused("", code, ask.version))
            return self._add(turn, group, ask, request, member_id)
        code = group.validate_member(member_id, instance_id)
        if code:
            return turn.answer(ask.reply, join_refused(member_id, code, ask.version))
        member = group.members[member_id]
        if (
            group.phase is not PREPARING
            and member.protocols == _protocols(request)
            and (group.phase is COMPLETING or group.leader != member_id)
        ):
            reached("groups.join_repeated")
            # The member repeats its JoinGroup, because the answer did not reach it. So repeat the answer.
            # (The leader of a stable group is excluded, because it joins again to start a rebalance.)
            self._sessions.renew(turn, group, member)
            return turn.answer(ask.reply, joined(group, member))
        self._update(turn, member, group, ask, request)
        self._rebalance_or_complete(turn, group)

    def _add(
        self, turn: Turn, group: ClassicGroup, ask: Ask, request: JoinGroupRequest, member_id: str
    ) -> None:
        member = Member(
            member_id,
            request.group_instance_id,
            ask.client_id,
            ask.client_host,
            request.session_timeout_ms,
            _rebalance_timeout(request, ask.version),
            _protocols(request),
        )
        member.is_new = True
        if group.phase is PREPARING and group.previous_phase is EMPTY:
            group.new_member_added = True
        group.add(member, request.protocol_type, ask.reply)
        # The member has no id yet, so it cannot send heartbeats. Its session therefore lasts as long as its
        # first rebalance may take.
        self._sessions.end_in(turn, group, member, self._settings.new_member_join_timeout_ms)
        self._rebalance_or_complete(turn, group)

    def _update(
        self, turn: Turn, member: Member, group: ClassicGroup, ask: Ask, request: JoinGroupRequest
    ) -> None:
        member.protocols = _protocols(request)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = _rebalance_timeout(request, ask.version)
        before = group.set_join_reply(member, ask.reply)
        if before is not None:
            reached("groups.joined_twice")
            # The member sent a second JoinGroup; only the later one takes part in the rebalance.
            turn.answer(before, join_refused(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS, 0))

    def _replace_static(
        self, turn: Turn, group: ClassicGroup, ask: Ask, request: JoinGroupRequest, new_id: str
    ) -> None:
        assert request.group_instance_id is not None
        joining = max((len(each.metadata) for each in request.protocols), default=0)
        if group.phase is STABLE and self._is_too_large(group, joining, {}):
            # The new member's metadata would go into the group's record at once, but the record would be too
            # large. So the old member stays.
            code = ErrorCode.UNKNOWN_SERVER_ERROR
            return turn.answer(ask.reply, join_refused(UNKNOWN_MEMBER, code, ask.version))
        leader_before = group.leader or ""
        old, new = group.replace_static_member(request.group_instance_id, new_id)
        turn.answer(old.join_reply, join_refused(old.member_id, ErrorCode.FENCED_INSTANCE_ID, 0))
        turn.answer(old.sync_reply, sync_refused(ErrorCode.FENCED_INSTANCE_ID))
        self._sessions.renew(turn, group, new)
        new.client_id, new.client_host = ask.client_id, ask.client_host
        self._update(turn, new, group, ask, request)
        if group.phase is PREPARING:
            self._complete_if_all_joined(turn, group)
        elif group.phase is STABLE and group.can_keep_generation(old):
            self._keep_generation(turn, group, new, ask, leader_before)
        else:
            self._prepare_rebalance(turn, group)

    def _keep_generation(
        self, turn: Turn, group: ClassicGroup, member: Member, ask: Ask, leader_before: str
    ) -> None:
        """Answer a static member that returns under a new id. It stays in the generation and keeps its
        assignment.
        """
        turn.records.append(group_metadata_record(group.group_id, group.stored()))
        group.set_join_reply(member, None)
        turn.answer(ask.reply, joined_again(group, member, leader_before, ask.version))

    # -- rebalance ------------------------------------------------------------------------------------------------

    def _rebalance_or_complete(self, turn: Turn, group: ClassicGroup) -> None:
        if group.can_rebalance:
            self._prepare_rebalance(turn, group)
        else:
            self._complete_if_all_joined(turn, group)

    def _complete_if_all_joined(self, turn: Turn, group: ClassicGroup) -> None:
        """Complete the join phase if all members have joined, except in a group's first rebalance, which
        waits for its delay.
        """
        if group.phase is PREPARING and group.has_all_members_joined and group.previous_phase is not EMPTY:
            self._complete_join(turn, group)

    def _prepare_rebalance(self, turn: Turn, group: ClassicGroup) -> None:
        if group.phase is COMPLETING:
            self._fail_syncs(turn, group, ErrorCode.REBALANCE_IN_PROGRESS)
        group.sync_timer = None
        is_initial = group.phase is EMPTY
        group.transition_to(PREPARING, turn.wall_ms)
        if is_initial:
            delay_ms = self._settings.initial_rebalance_delay_ms
            left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._wait_for_newcomers(turn, group, delay_ms, left_ms)
        elif group.has_all_members_joined:
            self._complete_join(turn, group)
        else:
            self._set_join_timer(turn, group, group.rebalance_timeout_ms)

    def _set_join_timer(self, turn: Turn, group: ClassicGroup, delay_ms: int) -> None:
        def expire(later: Turn) -> None:
            if group.join_timer is token and not group.is_gone:
                self._complete_join(later, group)

        token = group.join_timer = self._deadlines.at(turn.now_ms + delay_ms, expire)

    def _wait_for_newcomers(self, turn: Turn, group: ClassicGroup, delay_ms: int, left_ms: int) -> None:
        """Wait `delay_ms` for new members, and then again while members keep joining.

        `left_ms` is the rest of the rebalance timeout, in milliseconds. All waits after this one together take
        at most this time.
        """

        def expire(later: Turn) -> None:
            if group.join_timer is not token or group.is_gone:
                reached("groups.old_join_timer_passed")
                return
            if group.new_member_added and left_ms:
                group.new_member_added = False
                next_ms = min(self._settings.initial_rebalance_delay_ms, left_ms)
                self._wait_for_newcomers(later, group, next_ms, max(left_ms - delay_ms, 0))
            else:
                self._complete_join(later, group)

        token = group.join_timer = self._deadlines.at(turn.now_ms + delay_ms, expire)

    def _complete_join(self, turn: Turn, group: ClassicGroup) -> None:
        group.join_timer = None
        group.new_member_added = False
        for member in list(group.members.values()):
            if member.join_reply is None and not member.is_static:
                group.remove(member.member_id)
        if group.members and not group.elect_joined_leader():
            reached("groups.waits_for_static_members")
            # Only static members remain, and none has joined. Wait, as they stay until their sessions end.
            self._set_join_timer(turn, group, max(group.rebalance_timeout_ms, STATIC_WAIT_MS_MIN))
            return
        # After the largest number, generations start again at 1. Only a log that another program wrote can have
        # a generation so large.
        group.generation = group.generation % INT32_MAX + 1
        group.pending_sync.clear()
        if not group.members:
            group.protocol = None
            group.leader = None
            group.transition_to(EMPTY, turn.wall_ms)
            group.subscribed_topics = group.compute_subscribed_topics()
            turn.records.append(group_metadata_record(group.group_id, group.stored()))
            return
        group.protocol = group.select_protocol()
        group.transition_to(COMPLETING, turn.wall_ms)
        group.subscribed_topics = group.compute_subscribed_topics()
        for member in group.members.values():
            member.is_new = False
            group.pending_sync[member.member_id] = None
            self._sessions.renew(turn, group, member)
            reply = group.set_join_reply(member, None)
            turn.answer(reply, joined(group, member))
        self._set_sync_timer(turn, group)

    def _set_sync_timer(self, turn: Turn, group: ClassicGroup) -> None:
        """Start the time limit for SyncGroups. A member that does not sync within the rebalance timeout is
        removed.
        """

        def expire(later: Turn) -> None:
            if group.sync_timer is not token or group.is_gone:
                reached("groups.old_sync_timer_passed")
                return
            group.sync_timer = None
            if group.pending_sync:
                for member_id in list(group.pending_sync):
                    self._forget(later, group, member_id)
                self._prepare_rebalance(later, group)

        token = group.sync_timer = self._deadlines.at(turn.now_ms + group.rebalance_timeout_ms, expire)

    def _fail_syncs(self, turn: Turn, group: ClassicGroup, code: ErrorCode) -> None:
        """Drop all assignments, and answer every waiting SyncGroup with the error `code`."""
        for member in group.members.values():
            member.assignment = b""
            if member.sync_reply is not None:
                turn.answer(member.sync_reply, sync_refused(code))
                member.sync_reply = None
                self._sessions.renew(turn, group, member)

    # -- SyncGroup ------------------------------------------------------------------------------------------------

    def sync(self, turn: Turn, ask: Ask) -> None:
        request: SyncGroupRequest = ask.request
        group = self.find(turn, request.group_id) if request.group_id else None
        if group is None:
            code = ErrorCode.UNKNOWN_MEMBER_ID if request.group_id else ErrorCode.INVALID_GROUP_ID
        else:
            code = _validate_sync(group, request)
        if code or group is None:
            return turn.answer(ask.reply, sync_refused(code))
        member = group.members[request.member_id]
        group.pending_sync.pop(member.member_id, None)
        if group.phase is STABLE:
            return turn.answer(ask.reply, assigned(group, member))
        before, member.sync_reply = member.sync_reply, ask.reply
        if before is not None:
            turn.answer(before, sync_refused(ErrorCode.REBALANCE_IN_PROGRESS))
        if group.leader == member.member_id:
            self._take_assignment(turn, group, request)

    def _is_too_large(self, group: ClassicGroup, more_bytes: int, given: Mapping[str, bytes]) -> bool:
        """True if the group's record with the assignments in `given` would exceed the size limit of a batch."""
        return group_bytes(group, given) + more_bytes > self._settings.append_bytes_max

    def _take_assignment(self, turn: Turn, group: ClassicGroup, request: SyncGroupRequest) -> None:
        given = {each.member_id: each.assignment for each in request.assignments}
        if self._is_too_large(group, 0, given):
            reached("groups.assignment_too_large")
            # A record of this size cannot be written. The members may retry with smaller metadata, or an
            # operator may raise the limit.
            self._fail_syncs(turn, group, ErrorCode.UNKNOWN_SERVER_ERROR)
            return self._prepare_rebalance(turn, group)
        for member in group.members.values():
            member.assignment = given.get(member.member_id, b"")
        group.transition_to(STABLE, turn.wall_ms)
        turn.records.append(group_metadata_record(group.group_id, group.stored()))
        for member in group.members.values():
            if member.sync_reply is not None:
                turn.answer(member.sync_reply, assigned(group, member))
                member.sync_reply = None
                self._sessions.renew(turn, group, member)

    # -- Heartbeat ------------------------------------------------------------------------------------------------

    def heartbeat(self, turn: Turn, ask: Ask) -> None:
        request: HeartbeatRequest = ask.request
        turn.answer(ask.reply, HeartbeatResponse(0, self._heartbeat(turn, request)))

    def _heartbeat(self, turn: Turn, request: HeartbeatRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self.find(turn, request.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        code = group.validate_member(request.member_id, request.group_instance_id)
        if code:
            return code
        if request.generation_id != group.generation:
            reached("groups.heartbeat_of_other_generation_refused")
            return ErrorCode.ILLEGAL_GENERATION
        self._sessions.renew(turn, group, group.members[request.member_id])
        return ErrorCode.REBALANCE_IN_PROGRESS if group.phase is PREPARING else ErrorCode.NONE

    # -- LeaveGroup -----------------------------------------------------------------------------------------------

    def leave(self, turn: Turn, ask: Ask) -> None:
        request: LeaveGroupRequest = ask.request
        members = request.members
        if ask.version < LEAVE_GROUP_MEMBERS:
            members = [MemberIdentity(request.member_id)]
        code, codes = self._leave_all(turn, request.group_id, members)
        if code:
            return turn.answer(ask.reply, LeaveGroupResponse(0, code))
        if ask.version < LEAVE_GROUP_MEMBERS:
            return turn.answer(ask.reply, LeaveGroupResponse(0, codes[0]))
        results = [
            MemberResponse(each.member_id, each.group_instance_id, code)
            for each, code in zip(members, codes, strict=True)
        ]
        turn.answer(ask.reply, LeaveGroupResponse(0, ErrorCode.NONE, results))

    def leave_many(self, turn: Turn, ask: Ask) -> None:
        """Handle a `LeaveMembers` as `leave` handles a LeaveGroup. The answer has only error codes, and the
        caller builds the response from them.
        """
        request: LeaveMembers = ask.request
        turn.answer(ask.reply, self._leave_all(turn, request.group_id, request.members))

    def _leave_all(
        self, turn: Turn, group_id: str, members: Sequence[MemberIdentity]
    ) -> tuple[ErrorCode, Sequence[ErrorCode]]:
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID, ()
        group = self.find(turn, group_id)
        if group is None:
            return ErrorCode.NONE, (ErrorCode.UNKNOWN_MEMBER_ID,) * len(members)
        codes = [self._leave(turn, group, each) for each in members]
        if ErrorCode.NONE in codes:
            self._after_removal(turn, group)
        return ErrorCode.NONE, codes

    def _leave(self, turn: Turn, group: ClassicGroup, identity: MemberIdentity) -> ErrorCode:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if member_id == UNKNOWN_MEMBER:
            # The administrator who removes a static member knows only its instance id. So find the member by
            # that id.
            current = None if instance_id is None else group.static_members.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = current
        elif member_id not in group.pending_members:
            code = group.validate_member(member_id, instance_id)
            if code:
                return code
        self._forget(turn, group, member_id)
        return ErrorCode.NONE

    def _forget(self, turn: Turn, group: ClassicGroup, member_id: str) -> None:
        """Remove a member. Answer its waiting JoinGroup or SyncGroup, if there is one, with
        UNKNOWN_MEMBER_ID.
        """
        member = group.remove(member_id)
        if member is not None:
            turn.answer(member.join_reply, join_refused(UNKNOWN_MEMBER, ErrorCode.UNKNOWN_MEMBER_ID, 0))
            turn.answer(member.sync_reply, sync_refused(ErrorCode.UNKNOWN_MEMBER_ID))

    def _after_removal(self, turn: Turn, group: ClassicGroup) -> None:
        if group.phase in (STABLE, COMPLETING):
            self._prepare_rebalance(turn, group)
        else:
            self._complete_if_all_joined(turn, group)

    # -- sessions -------------------------------------------------------------------------------------------------

    def renew_session(self, turn: Turn, group: ClassicGroup, member_id: str) -> None:
        """Renew a member's session; called for an offset commit, which counts as a heartbeat."""
        member = group.members.get(member_id)
        if member is not None:
            self._sessions.renew(turn, group, member)

    def _lose(self, turn: Turn, group: ClassicGroup, member_id: str) -> None:
        """Remove a member whose session is over."""
        self._forget(turn, group, member_id)
        self._after_removal(turn, group)

    def _lose_pending(self, turn: Turn, group: ClassicGroup, member_id: str) -> None:
        """Remove a pending member that has not joined in time."""
        group.remove(member_id)
        self._complete_if_all_joined(turn, group)


def _validate_sync(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    code = group.validate_member(request.member_id, request.group_instance_id)
    if code:
        return code
    if request.generation_id != group.generation:
        reached("groups.sync_of_other_generation_refused")
        return ErrorCode.ILLEGAL_GENERATION
    for asked, agreed in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol),
    ):
        if asked is not None and agreed is not None and asked != agreed:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.phase is EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.REBALANCE_IN_PROGRESS if group.phase is PREPARING else ErrorCode.NONE


def _protocols(request: JoinGroupRequest) -> Protocols:
    return tuple((each.name, each.metadata) for each in request.protocols)


def _rebalance_timeout(request: JoinGroupRequest, version: int) -> int:
    if version < JOIN_GROUP_REBALANCE_TIMEOUT or request.rebalance_timeout_ms == -1:
        return request.session_timeout_ms
    return request.rebalance_timeout_ms


def _dashed(uuid: bytes) -> str:
    text = uuid.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
