"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup for members of the classic protocol in a consumer group. PURE.

Such a member reaches its target by JoinGroups instead of heartbeats. Its Heartbeat is answered with
REBALANCE_IN_PROGRESS when the member must act. The member must act if there is a newer target, if it must
revoke partitions, or if partitions have become free. The member then joins again, which is one step towards its
target. By SyncGroup it gets its present assignment. The member is never the group's leader, because the
coordinator computes the assignment. A member that does not join or sync within its rebalance timeout is fenced.

A group without members, classic or consumer, takes the protocol of the first member that joins.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.data_plane.coordination.asking import Ask
from odradek.data_plane.groups.classic_group import CONSUMER_PROTOCOL
from odradek.data_plane.groups.classic_responses import UNKNOWN_MEMBER, join_refused, sync_refused
from odradek.data_plane.groups.consumers.consumer_group import (
    ClassicSide,
    ConsumerGroup,
    Member,
    MemberState,
    Profile,
)
from odradek.data_plane.groups.consumers.consumer_membership import ConsumerMembership
from odradek.data_plane.groups.consumers.finding_members import (
    known_member,
    known_static_member,
    successor_of,
)
from odradek.data_plane.groups.consumers.group_change import GroupChange
from odradek.data_plane.groups.consumers.migration import (
    encoded_assignment,
    may_downgrade,
    owned_by_id,
    subscription_in,
)
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.groups.membership import LeaveMembers, Membership
from odradek.data_plane.groups.turn import Turn
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError, ProtocolError
from odradek.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from odradek.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from odradek.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from odradek.wire.schema.versions import JOIN_GROUP_MEMBER_ID_REQUIRED, LEAVE_GROUP_MEMBERS
from odradek.wire.uuid_text import uuid_to_text

__all__ = ["ClassicMembers"]


class ClassicMembers:
    """The decisions on requests of the classic protocol, for groups of both protocols."""

    def __init__(self, settings: GroupSettings, classic: Membership, consumers: ConsumerMembership) -> None:
        self._settings = settings
        self._classic = classic
        self._consumers = consumers

    # -- JoinGroup ------------------------------------------------------------------------------------------------

    def join(self, turn: Turn, ask: Ask) -> None:
        request: JoinGroupRequest = ask.request
        refusal = self._classic.refuse_join(ask, request)
        if refusal is not None:
            return turn.answer(ask.reply, refusal)
        group = turn.state.consumers.get(request.group_id)
        if group is None:
            return self._classic.join(turn, ask)
        if group.is_empty:
            if request.member_id == UNKNOWN_MEMBER:
                done = len(turn.records)
                self._consumers.delete(turn, group)
                turn.catch_up(done)
            return self._classic.join(turn, ask)
        try:
            response = self._join(turn, ask, request, group)
        except KafkaError as error:
            response = join_refused(request.member_id, error.code, ask.version)
        turn.answer(ask.reply, response)

    def _join(
        self, turn: Turn, ask: Ask, request: JoinGroupRequest, group: ConsumerGroup
    ) -> JoinGroupResponse:
        is_new = request.member_id == UNKNOWN_MEMBER
        member_id = uuid_to_text(turn.new_uuid()) if is_new else request.member_id
        self._consumers.check_room(group, request.member_id)
        names = tuple(each.name for each in request.protocols)
        if request.protocol_type != CONSUMER_PROTOCOL or not group.supports_protocols(names):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        instance_id = request.group_instance_id
        if is_new and instance_id is None and ask.version >= JOIN_GROUP_MEMBER_ID_REQUIRED:
            return join_refused(member_id, ErrorCode.MEMBER_ID_REQUIRED, ask.version)
        change = GroupChange(group)
        before, replaces = self._before(change, member_id, instance_id, is_new)
        becomes_classic = replaces and may_downgrade(change.group, [member_id], self._settings, joining=1)
        try:
            subscription = subscription_in(request.protocols[0].metadata)
        except ProtocolError as error:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR) from error
        timeout_ms = request.rebalance_timeout_ms
        profile = Profile(
            before.profile.instance_id if instance_id is None else instance_id,
            subscription.rack_id or before.profile.rack_id,
            ask.client_id,
            ask.client_host,
            tuple(sorted(dict.fromkeys(subscription.topics))),
            "",
            before.profile.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
            before.profile.assignor,
            ClassicSide(
                request.session_timeout_ms,
                tuple((each.name, bytes(each.metadata)) for each in request.protocols),
            ),
        )
        self._consumers.check_memory(turn, change.group, before, profile)
        owned = owned_by_id(subscription, self._consumers.image)
        member = self._consumers.advance(turn, change, before, profile, owned, may_assign=not becomes_classic)
        self._consumers.decided(turn, change)
        if becomes_classic:
            reached("consumer_groups.static_member_returned_as_classic")
            has_old_target = change.group.target_epoch < change.group.epoch
            self._consumers.downgrade(turn, change.group, rebalances=has_old_target)
        else:
            self._consumers.joined_as_classic(turn, change.group.group_id, member)
        return JoinGroupResponse(
            0, ErrorCode.NONE, member.epoch, CONSUMER_PROTOCOL, names[0], "", False, member_id, []
        )

    def _before(
        self, change: GroupChange, member_id: str, instance_id: str | None, is_new: bool
    ) -> tuple[Member, bool]:
        """Find or create the member that joins.

        Returns the member, and True if it replaces a static member that spoke the consumer protocol.
        """
        group = change.group
        if instance_id is None:
            found: Member = group.members.get(member_id, Member(member_id))
            return found, False
        existing = group.static_member(instance_id)
        if not is_new:
            return known_static_member(group, member_id, instance_id), False
        if existing is None:
            return Member(member_id), False
        was_consumer = existing.profile.classic is None
        return successor_of(change, existing, member_id), was_consumer

    # -- SyncGroup ------------------------------------------------------------------------------------------------

    def sync(self, turn: Turn, ask: Ask) -> None:
        request: SyncGroupRequest = ask.request
        group = turn.state.consumers.get(request.group_id)
        if group is None:
            return self._classic.sync(turn, ask)
        try:
            response = self._sync(turn, request, group)
        except KafkaError as error:
            response = sync_refused(error.code)
        turn.answer(ask.reply, response)

    def _sync(self, turn: Turn, request: SyncGroupRequest, group: ConsumerGroup) -> SyncGroupResponse:
        if group.is_empty:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        member, side = _classic_member(group, request.member_id, request.group_instance_id)
        if request.generation_id != member.epoch:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        for asked, agreed in (
            (request.protocol_type, CONSUMER_PROTOCOL),
            (request.protocol_name, side.protocols[0][0]),
        ):
            if asked is not None and asked != agreed:
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.target_epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._consumers.timers.watch_join(turn, group.group_id, member)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._consumers.timers.end_sync(group.group_id, member.member_id)
        self._renew(turn, group, member, side)
        assignment = encoded_assignment(member.assigned, side.protocols[0][1], self._consumers.image)
        return SyncGroupResponse(0, ErrorCode.NONE, request.protocol_type, request.protocol_name, assignment)

    def _renew(self, turn: Turn, group: ConsumerGroup, member: Member, side: ClassicSide) -> None:
        timeout_ms = side.session_timeout_ms
        self._consumers.timers.renew_session(turn, group.group_id, member.member_id, timeout_ms)

    # -- Heartbeat ------------------------------------------------------------------------------------------------

    def heartbeat(self, turn: Turn, ask: Ask) -> None:
        request: HeartbeatRequest = ask.request
        group = turn.state.consumers.get(request.group_id)
        if group is None:
            return self._classic.heartbeat(turn, ask)
        try:
            code = self._heartbeat(turn, request, group)
        except KafkaError as error:
            code = error.code
        turn.answer(ask.reply, HeartbeatResponse(0, code))

    def _heartbeat(self, turn: Turn, request: HeartbeatRequest, group: ConsumerGroup) -> ErrorCode:
        member, side = _classic_member(group, request.member_id, request.group_instance_id)
        if request.generation_id != member.epoch:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        self._renew(turn, group, member, side)
        if (
            member.epoch < group.target_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not _waits(group, member))
        ):
            self._consumers.timers.watch_join(turn, group.group_id, member)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # -- LeaveGroup -----------------------------------------------------------------------------------------------

    def leave(self, turn: Turn, ask: Ask) -> None:
        request: LeaveGroupRequest = ask.request
        group = turn.state.consumers.get(request.group_id)
        if group is None:
            return self._classic.leave(turn, ask)
        members: Sequence[MemberIdentity] = request.members
        if ask.version < LEAVE_GROUP_MEMBERS:
            members = [MemberIdentity(request.member_id)]
        codes = self._leave(turn, group, members)
        if ask.version < LEAVE_GROUP_MEMBERS:
            return turn.answer(ask.reply, LeaveGroupResponse(0, codes[0]))
        results = [
            MemberResponse(each.member_id, each.group_instance_id, code)
            for each, code in zip(members, codes, strict=True)
        ]
        turn.answer(ask.reply, LeaveGroupResponse(0, ErrorCode.NONE, results))

    def leave_many(self, turn: Turn, ask: Ask) -> None:
        request: LeaveMembers = ask.request
        group = turn.state.consumers.get(request.group_id)
        if group is None:
            return self._classic.leave_many(turn, ask)
        turn.answer(ask.reply, (ErrorCode.NONE, self._leave(turn, group, request.members)))

    def _leave(self, turn: Turn, group: ConsumerGroup, members: Sequence[MemberIdentity]) -> list[ErrorCode]:
        leaving: dict[str, None] = {}
        codes = []
        for each in members:
            try:
                leaving[_leaving_member(group, each).member_id] = None
                codes.append(ErrorCode.NONE)
            except KafkaError as error:
                codes.append(error.code)
        self._consumers.fence(turn, group, list(leaving))
        return codes


def _leaving_member(group: ConsumerGroup, identity: MemberIdentity) -> Member:
    if identity.group_instance_id is None:
        return known_member(group, identity.member_id)
    if identity.member_id == UNKNOWN_MEMBER:
        # The administrator who removes a static member knows only its instance id. So find the member by that
        # id.
        member = group.static_member(identity.group_instance_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member
    return known_static_member(group, identity.member_id, identity.group_instance_id)


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> tuple[Member, ClassicSide]:
    if instance_id is None:
        member = known_member(group, member_id)
    else:
        member = known_static_member(group, member_id, instance_id)
    if member.profile.classic is None:
        reached("consumer_groups.other_protocol_refused")
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member, member.profile.classic


def _waits(group: ConsumerGroup, member: Member) -> bool:
    """True if the member waits for a partition of its target that another member still owns."""
    owners = group.owners
    return any(
        partition not in member.assigned.get(topic_id, {}) and (topic_id, partition) in owners
        for topic_id, partitions in group.target_of(member.member_id).items()
        for partition in partitions
    )
