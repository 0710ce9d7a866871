"""Lists, describes and deletes groups of both protocols, with their members and assignments. The functions are
operations. PURE.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from odradek.client.core.operation import Operation
from odradek.client.core.scatter import (
    deadline_of,
    item_error,
    reachable,
    scatter,
    this_broker,
    to_coordinators,
)
from odradek.wire.errors import ErrorCode, KafkaError, ProtocolError
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore
    from odradek.client.core.scatter import CallError

__all__ = [
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "delete_groups",
    "describe_groups",
    "list_groups",
]

_CONSUMER_PROTOCOL = "consumer"
_DEAD, _EMPTY = "Dead", "Empty"
_MEMBER_PROTOCOLS = {0: "classic", 1: "consumer"}
"""The names of members' protocols, by their number in ConsumerGroupDescribe."""


@attrs.frozen
class GroupListing:
    """A group in its coordinator's list. `group_type` is "classic" or "consumer"; `state` is Kafka's name of
    the state.
    """

    group_id: str
    protocol_type: str
    state: str
    group_type: str
    coordinator: int


@attrs.frozen
class GroupMember:
    """A member of a group. `partitions` are the partitions assigned to it, if the group's protocol type is
    "consumer".

    The fields after `assignment` have values only for a group of the new protocol (KIP-848). `target` is the
    assignment that the member is moving towards. `protocol` is "classic", "consumer", or empty if the broker
    does not report the protocol.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    partitions: tuple[TopicPartition, ...]
    metadata: bytes
    assignment: bytes
    member_epoch: int = -1
    target: tuple[TopicPartition, ...] = ()
    subscribed_topics: tuple[str, ...] = ()
    subscribed_pattern: str | None = None
    rack: str | None = None
    protocol: str = ""


@attrs.frozen
class GroupDescription:
    """A group and its members. `protocol` is the name of the assignor. In a classic group, the members have agreed on
    this assignor; in other groups, the coordinator runs it.

    `group_type` is "classic" or "consumer". Only the type "consumer" has a group epoch and an epoch of the
    target assignment. These two epochs differ while the coordinator computes a new target. If `error` is set,
    all fields but the id are empty.
    """

    group_id: str
    state: str = ""
    protocol_type: str = ""
    protocol: str = ""
    coordinator: int = -1
    members: tuple[GroupMember, ...] = ()
    error: CallError | None = None
    group_type: str = ""
    group_epoch: int = -1
    assignment_epoch: int = -1


def list_groups(
    core: ClientCore,
    *,
    states: Sequence[str] = (),
    types: Sequence[str] = (),
    timeout: float | None = None,
) -> Operation[list[GroupListing]]:
    """List the groups of all coordinators, sorted by id. If `states` or `types` are given, only groups with
    such a state or type are listed. A group is listed once, although its offsets may be with two brokers.

    Raises the `KafkaError` or `ClientError` of the first broker that failed, because the list would be
    incomplete.
    """
    from odradek.wire.messages.list_groups import ListGroupsRequest

    deadline = deadline_of(core, timeout)
    yield from reachable(core, deadline)

    def message(_: list[int], __: int) -> ListGroupsRequest:
        return ListGroupsRequest(states_filter=list(states), types_filter=list(types))

    def take(response: Any, nodes: list[int]) -> Iterable[tuple[int, Any]]:
        (node,) = nodes
        error = item_error(response.error_code, None, f"groups of broker {node}")
        yield node, error or response.groups

    while True:
        outcomes = yield from scatter(
            core,
            sorted(core.cluster.brokers),
            this_broker(lambda node: int(node)),
            message,
            take,
            deadline=deadline,
        )
        gone = [node for node in outcomes if node not in core.cluster.brokers]
        if not gone or core.now >= deadline:
            break
        # A broker left, and its groups have moved to coordinators that may have answered already. So ask all
        # brokers again.
    found = []
    for node, groups in outcomes.items():
        if isinstance(groups, Exception):
            raise groups
        found += [
            GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type.lower() or "classic", node)
            for g in groups
        ]
    twice = [group_id for group_id, count in Counter(each.group_id for each in found).items() if count > 1]
    if twice:
        found = yield from _listed_once(core, found, twice, deadline)
    return sorted(found, key=lambda group: group.group_id)


def _listed_once(
    core: ClientCore, found: list[GroupListing], twice: list[str], deadline: float
) -> Operation[list[GroupListing]]:
    """Keep one entry of each group. If `__consumer_offsets` has got more partitions, an old one still has offsets of groups
    that belong to another coordinator now. So the coordinator's entry is kept. If it is not known, an entry with members is.
    """
    routed = yield from to_coordinators(core, twice, deadline)
    coordinators = {group_id: node for node, ids in routed.by_node.items() for group_id in ids}
    kept: dict[str, GroupListing] = {}
    for each in found:
        before = kept.get(each.group_id)
        if before is None or _rank(each, coordinators) > _rank(before, coordinators):
            kept[each.group_id] = each
    return list(kept.values())


def _rank(each: GroupListing, coordinators: Mapping[str, int | None]) -> tuple[bool, bool]:
    return coordinators.get(each.group_id) == each.coordinator, each.state not in (_EMPTY, _DEAD)


def describe_groups(
    core: ClientCore, group_ids: Sequence[str], *, timeout: float | None = None
) -> Operation[list[GroupDescription]]:
    """Describe groups, each by its coordinator, in the order of `group_ids`.

    A group that does not use the classic protocol is described by ConsumerGroupDescribe (KIP-848), if the
    broker supports that request. A group that does not exist has the error GROUP_ID_NOT_FOUND, however the
    broker reports it. Raises `ClientError`.
    """
    from odradek.wire.messages.describe_groups import DescribeGroupsRequest

    deadline = deadline_of(core, timeout)

    def message(wanted: list[str], _: int) -> DescribeGroupsRequest:
        return DescribeGroupsRequest(groups=wanted)

    def take(response: Any, _: list[str]) -> Iterable[tuple[str, GroupDescription | CallError]]:
        for answer in response.groups:
            error = item_error(answer.error_code, answer.error_message, f"group {answer.group_id}")
            if (error is None and answer.group_state == _DEAD) or (
                error is not None and error.code is ErrorCode.GROUP_ID_NOT_FOUND
            ):
                error = KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {answer.group_id} does not exist")
            yield answer.group_id, error or _description(answer)

    outcomes = yield from scatter(core, group_ids, to_coordinators, message, take, deadline=deadline)
    missing = [
        group_id
        for group_id, found in outcomes.items()
        if isinstance(found, KafkaError) and found.code is ErrorCode.GROUP_ID_NOT_FOUND
    ]
    if missing:
        newer = yield from _describe_newer_groups(core, missing, deadline)
        outcomes |= {key: found for key, found in newer.items() if isinstance(found, GroupDescription)}
    coordinators = yield from _coordinators(core, outcomes, deadline)
    return [
        attrs.evolve(found, coordinator=coordinators.get(group_id, -1))
        if isinstance(found, GroupDescription)
        else GroupDescription(group_id, error=found)
        for group_id, found in outcomes.items()
    ]


def _describe_newer_groups(
    core: ClientCore, group_ids: Sequence[str], deadline: float
) -> Operation[dict[str, GroupDescription | CallError]]:
    """Describe groups of the new protocol (KIP-848): each group's description, or its error."""
    from odradek.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest

    def message(wanted: list[str], _: int) -> ConsumerGroupDescribeRequest:
        return ConsumerGroupDescribeRequest(group_ids=wanted)

    def take(response: Any, _: list[str]) -> Iterable[tuple[str, GroupDescription | CallError]]:
        for answer in response.groups:
            error = item_error(answer.error_code, answer.error_message, f"group {answer.group_id}")
            yield answer.group_id, error or _newer_description(answer)

    return (yield from scatter(core, group_ids, to_coordinators, message, take, deadline=deadline))


def delete_groups(
    core: ClientCore, group_ids: Sequence[str], *, timeout: float | None = None
) -> Operation[list[tuple[str, CallError | None]]]:
    """Delete groups that have no members, with their committed offsets. Return each group's error, or None on
    success.

    Raises `ClientError`.
    """
    from odradek.wire.messages.delete_groups import DeleteGroupsRequest

    def message(wanted: list[str], _: int) -> DeleteGroupsRequest:
        return DeleteGroupsRequest(groups_names=wanted)

    def take(response: Any, _: list[str]) -> Iterable[tuple[str, KafkaError | None]]:
        for answer in response.results:
            yield answer.group_id, group_error(answer.error_code, answer.group_id)

    outcomes = yield from scatter(
        core,
        group_ids,
        to_coordinators,
        message,
        take,
        deadline=deadline_of(core, timeout),
        repeat_after_loss=False,
    )
    return list(outcomes.items())


def group_error(number: int, group_id: str) -> KafkaError | None:
    """Make an error from a group's error code; return None if the code means success. The error's text has
    the group's name.
    """
    error = item_error(number, None, f"group {group_id}")
    if error is not None and error.code is ErrorCode.GROUP_ID_NOT_FOUND:
        return KafkaError(error.code, f"group {group_id} does not exist")
    if error is not None and error.code is ErrorCode.NON_EMPTY_GROUP:
        return KafkaError(error.code, f"group {group_id} still has members: stop its consumers first")
    return error


def _coordinators(core: ClientCore, group_ids: Iterable[str], deadline: float) -> Operation[dict[str, int]]:
    routed = yield from to_coordinators(core, list(group_ids), deadline)
    return {key: node for node, keys in routed.by_node.items() if node is not None for key in keys}


def _description(answer: Any) -> GroupDescription:
    speaks_consumer = answer.protocol_type == _CONSUMER_PROTOCOL
    members = [
        GroupMember(
            each.member_id,
            each.group_instance_id,
            each.client_id,
            each.client_host,
            _assigned(each.member_assignment) if speaks_consumer else (),
            bytes(each.member_metadata),
            bytes(each.member_assignment),
        )
        for each in answer.members
    ]
    return GroupDescription(
        answer.group_id,
        answer.group_state,
        answer.protocol_type,
        answer.protocol_data,
        members=_in_order(members),
        group_type="classic",
    )


def _newer_description(answer: Any) -> GroupDescription:
    members = [
        GroupMember(
            each.member_id,
            each.instance_id,
            each.client_id,
            each.client_host,
            _partitions_of(each.assignment),
            b"",
            b"",
            member_epoch=each.member_epoch,
            target=_partitions_of(each.target_assignment),
            subscribed_topics=tuple(each.subscribed_topic_names),
            subscribed_pattern=each.subscribed_topic_regex or None,
            rack=each.rack_id,
            protocol=_MEMBER_PROTOCOLS.get(each.member_type, ""),
        )
        for each in answer.members
    ]
    return GroupDescription(
        answer.group_id,
        answer.group_state,
        _CONSUMER_PROTOCOL,
        answer.assignor_name,
        members=_in_order(members),
        group_type="consumer",
        group_epoch=answer.group_epoch,
        assignment_epoch=answer.assignment_epoch,
    )


def _partitions_of(assignment: Any) -> tuple[TopicPartition, ...]:
    found = (
        TopicPartition(topic.topic_name, index)
        for topic in assignment.topic_partitions
        for index in topic.partitions
    )
    return tuple(sorted(found))


def _in_order(members: Iterable[GroupMember]) -> tuple[GroupMember, ...]:
    return tuple(sorted(members, key=lambda member: (member.client_id, member.member_id)))


def _assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """Decode the partitions of an assignment. Return an empty tuple if `data` is empty or belongs to an
    unknown protocol.
    """
    if len(data) < 2:
        return ()
    from odradek.wire.codec import decode
    from odradek.wire.messages.data_records import ConsumerProtocolAssignment

    low, high = ConsumerProtocolAssignment.VALID_VERSIONS
    version = min(high, int.from_bytes(data[:2], "big", signed=True))
    if version < low:
        return ()
    try:
        # Newer versions only append fields. With `exact=False`, the bytes of these fields are ignored.
        found = decode(ConsumerProtocolAssignment, version, data, 2, exact=False)
    except ProtocolError:
        return ()
    return tuple(
        sorted(
            TopicPartition(topic.topic, index)
            for topic in found.assigned_partitions
            for index in topic.partitions
        )
    )
