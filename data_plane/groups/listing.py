"""ListGroups, DescribeGroups, ConsumerGroupDescribe and DeleteGroups: administrators' requests about groups.
PURE.
"""

from __future__ import annotations

import attrs

from odradek.data_plane.coordination.asking import Ask
from odradek.data_plane.groups.classic_group import CONSUMER_PROTOCOL, ClassicGroup, GroupPhase
from odradek.data_plane.groups.consumers.describing import group_not_found
from odradek.data_plane.groups.membership import Membership
from odradek.data_plane.groups.offsets import OffsetStore
from odradek.data_plane.groups.turn import Turn
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember
from odradek.wire.messages.list_groups import ListedGroup
from odradek.wire.schema.versions import DESCRIBE_GROUPS_NOT_FOUND

CLASSIC_TYPE, CONSUMER_TYPE = "classic", "consumer"


@attrs.frozen
class ListGroups:
    """A request to list all groups of one coordinator.

    It is answered with a list of `ListedGroup`, sorted by name.
    """


@attrs.frozen
class DescribeGroup:
    """A request to describe one group. It is answered with a `DescribedGroup`."""

    group_id: str


@attrs.frozen
class DescribeConsumerGroup:
    """A request for one group of the consumer protocol.

    It is answered with the `ConsumerGroup`, or with ConsumerGroupDescribe's `DescribedGroup` if there is an
    error.
    """

    group_id: str


@attrs.frozen
class DeleteGroup:
    """A request to delete one group. It is answered with an error code."""

    group_id: str


class Listing:
    """The decisions on administrators' requests about the groups of one coordinator."""

    def __init__(self, membership: Membership, offsets: OffsetStore) -> None:
        self._membership = membership
        self._offsets = offsets

    def list_groups(self, turn: Turn, ask: Ask) -> None:
        listed = []
        for group_id in turn.state.group_ids():
            consumers = turn.state.consumers.get(group_id)
            if consumers is not None:
                state = consumers.state.value
                listed.append(ListedGroup(group_id, CONSUMER_PROTOCOL, state, CONSUMER_TYPE))
                continue
            group = self._membership.find(turn, group_id)
            assert group is not None
            listed.append(ListedGroup(group_id, group.protocol_type or "", group.phase.value, CLASSIC_TYPE))
        turn.answer(ask.reply, listed)

    def describe(self, turn: Turn, ask: Ask) -> None:
        request: DescribeGroup = ask.request
        group = self._membership.find(turn, request.group_id)
        is_of_other_kind = request.group_id in turn.state.consumers
        turn.answer(ask.reply, describe(request.group_id, group, ask.version, is_of_other_kind))

    def describe_consumers(self, turn: Turn, ask: Ask) -> None:
        request: DescribeConsumerGroup = ask.request
        group = turn.state.consumers.get(request.group_id)
        if group is None:
            is_there = turn.state.has_group(request.group_id)
            return turn.answer(ask.reply, group_not_found(request.group_id, is_there))
        turn.answer(ask.reply, group)

    def delete(self, turn: Turn, ask: Ask) -> None:
        request: DeleteGroup = ask.request
        consumers = turn.state.consumers.get(request.group_id)
        if consumers is not None:
            if not consumers.is_empty:
                return turn.answer(ask.reply, ErrorCode.NON_EMPTY_GROUP)
            self._offsets.delete_all(turn, request.group_id)
            return turn.answer(ask.reply, ErrorCode.NONE)
        group = self._membership.find(turn, request.group_id)
        if group is None:
            return turn.answer(ask.reply, ErrorCode.GROUP_ID_NOT_FOUND)
        if group.phase is not GroupPhase.EMPTY:
            reached("groups.deletion_refused")
            return turn.answer(ask.reply, ErrorCode.NON_EMPTY_GROUP)
        self._offsets.delete_all(turn, request.group_id)
        turn.answer(ask.reply, ErrorCode.NONE)


def describe(
    group_id: str, group: ClassicGroup | None, version: int, is_of_other_kind: bool = False
) -> DescribedGroup:
    """Describe a classic group; only a stable group has a protocol and metadata.

    If the group is missing or of another kind, its state is `Dead`. From version 6 on, the description also
    has the error GROUP_ID_NOT_FOUND (KIP-1043).
    """
    if group is None:
        if version >= DESCRIBE_GROUPS_NOT_FOUND:
            # A group id may be as long as a string may be, and the error text contains the id. So
            # `KafkaError` cuts the text to the length of a string.
            fault = "is not a classic group" if is_of_other_kind else "not found"
            message = KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {fault}.").message
            return DescribedGroup(ErrorCode.GROUP_ID_NOT_FOUND, message, group_id, GroupPhase.DEAD.value)
        return DescribedGroup(ErrorCode.NONE, None, group_id, GroupPhase.DEAD.value)
    stable = group.phase is GroupPhase.STABLE
    protocol = (group.protocol or "") if stable else ""
    members = [
        DescribedGroupMember(
            each.member_id,
            each.group_instance_id,
            each.client_id,
            each.client_host,
            each.metadata_for(protocol) if stable else b"",
            each.assignment,
        )
        for each in group.members.values()
    ]
    return DescribedGroup(
        ErrorCode.NONE, None, group_id, group.phase.value, group.protocol_type or "", protocol, members
    )
