"""Doors with rules of their own about groups: OffsetFetch, ConsumerGroupHeartbeat, ListGroups, FindCoordinator.
Their rights do not fit into one row of the table in `apis.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from odradek.security.acls.rules import CLUSTER_NAME, Operation, ResourceType
from odradek.security.doors.door import Admitted, Asked, operations_of
from odradek.security.doors.needing import hiding, needing, on_group, on_topic, refusing, then
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from odradek.wire.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from odradek.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from odradek.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from odradek.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from odradek.wire.schema.anatomy import Anatomy, anatomy_of
from odradek.wire.schema.versions import FIND_COORDINATOR_SHARE

__all__ = [
    "consumer_group_describe_door",
    "consumer_group_heartbeat_door",
    "describe_groups_door",
    "find_coordinator_door",
    "list_groups_door",
    "offset_fetch_door",
]

GROUP_KEY, TRANSACTION_KEY, SHARE_KEY = 0, 1, 2
_MAY_SEE = on_topic(Operation.DESCRIBE)


def offset_fetch_door(asked: Asked, request: OffsetFetchRequest) -> Admitted | OffsetFetchResponse:
    """Require DESCRIBE on each group and each topic.

    If a client asks for all offsets of a group, topics that it may not DESCRIBE are left out.
    """
    anatomy = anatomy_of(request, asked.version)
    of_topics = anatomy.within
    if of_topics is None:
        if not asked.may_group(Operation.DESCRIBE, request.group_id):
            refused: OffsetFetchResponse = anatomy.refuse(request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
            return refused
        return Admitted(*_offsets_of(asked, anatomy, request))
    right = on_group(Operation.DESCRIBE)
    codes = [right.refused_code(asked, anatomy, group) for group in request.groups]
    allowed, add = anatomy.without(request, codes)
    parted = [_offsets_of(asked, of_topics, group) for group in allowed.groups]

    def merge(response: OffsetFetchResponse) -> OffsetFetchResponse:
        for (_, complete), answer in zip(parted, response.groups, strict=True):
            complete(answer)
        whole: OffsetFetchResponse = add(response)
        return whole

    return Admitted(attrs.evolve(allowed, groups=[group for group, _ in parted]), merge)


def _offsets_of(asked: Asked, anatomy: Anatomy, group: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Split one group of a request.

    Returns the part of the group that the client may request, and a function that completes the answer. The
    function adds errors for refused topics, or removes hidden topics.
    """
    if group.topics is not None:
        codes = [_MAY_SEE.refused_code(asked, anatomy, topic) for topic in group.topics]
        return anatomy.without(group, codes)

    def hide(answer: Any) -> Any:
        # The handler fills in the name of each topic, even if the client names topics by id. So names suffice
        # here.
        answer.topics = hiding(asked, ResourceType.TOPIC, answer.topics, "name")
        return answer

    return group, hide


def _describe_operations(
    asked: Asked, request: DescribeGroupsRequest, response: DescribeGroupsResponse
) -> DescribeGroupsResponse:
    if request.include_authorized_operations:
        for each in response.groups:
            if not each.error_code:
                each.authorized_operations = operations_of(asked.rights, ResourceType.GROUP, each.group_id)
    return response


describe_groups_door = then(
    needing(each=on_group(Operation.DESCRIBE)), _describe_operations, "DESCRIBE on each group."
)


def consumer_group_heartbeat_door(
    asked: Asked, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | None:
    """Require READ on the group, and DESCRIBE on each topic that the member names."""
    if not asked.may_group(Operation.READ, request.group_id):
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    for name in dict.fromkeys(request.subscribed_topic_names or ()):
        if not asked.may(Operation.DESCRIBE, name):
            return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return None


_HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


def _hide_topics(
    asked: Asked, request: ConsumerGroupDescribeRequest, response: ConsumerGroupDescribeResponse
) -> ConsumerGroupDescribeResponse:
    visible: dict[str, bool] = {}

    def may_see(name: str) -> bool:
        if name not in visible:
            visible[name] = asked.would(Operation.DESCRIBE, ResourceType.TOPIC, name)
        return visible[name]

    for index, group in enumerate(response.groups):
        if not all(map(may_see, _assigned_topics(group))):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            response.groups[index] = DescribedConsumerGroup(code, _HIDDEN_TOPICS, group.group_id)
            continue
        for member in group.members:
            member.subscribed_topic_names = [name for name in member.subscribed_topic_names if may_see(name)]
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = operations_of(asked.rights, ResourceType.GROUP, group.group_id)
    return response


def _assigned_topics(group: DescribedConsumerGroup) -> dict[str, None]:
    return dict.fromkeys(
        topic.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    )


consumer_group_describe_door = then(
    needing(each=on_group(Operation.DESCRIBE)),
    _hide_topics,
    "DESCRIBE on each group, and on each topic that its members have or should have.",
)


def list_groups_door(asked: Asked, request: ListGroupsRequest) -> Admitted | None:
    """Let in all clients.

    Without DESCRIBE on the cluster, a client sees only the groups that it may DESCRIBE.
    """
    if asked.would(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return None

    def hide(response: ListGroupsResponse) -> ListGroupsResponse:
        response.groups = hiding(asked, ResourceType.GROUP, response.groups, "group_id")
        return response

    return Admitted(request, hide)


def find_coordinator_door(asked: Asked, request: FindCoordinatorRequest) -> Any:
    """Require DESCRIBE on the group or the transactional id. For coordinators of share groups, require
    CLUSTER_ACTION on the cluster.
    """
    anatomy = anatomy_of(request, asked.version)
    kind = request.key_type
    if not anatomy.row.things:
        code = _refused_key(asked, kind, request.key)
        return anatomy.refuse(request, code, code.message) if code else None
    codes = [_refused_key(asked, kind, key) for key in request.coordinator_keys]
    # As in Kafka, only errors about share groups have a text.
    return refusing(anatomy, request, codes, lambda _, code: code.message if kind == SHARE_KEY else "")


def _refused_key(asked: Asked, kind: int, key: str) -> ErrorCode:
    if kind == GROUP_KEY and not asked.may_group(Operation.DESCRIBE, key):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if kind == TRANSACTION_KEY and not asked.may_transact(Operation.DESCRIBE, key):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if (
        kind == SHARE_KEY
        and asked.version >= FIND_COORDINATOR_SHARE
        and not asked.may_cluster(Operation.CLUSTER_ACTION)
    ):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return ErrorCode.NONE
