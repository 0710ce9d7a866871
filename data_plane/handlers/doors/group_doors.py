"""Doors of requests about groups and their offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from odradek.security.acls.rules import CLUSTER_NAME, Operation, ResourceType
from odradek.security.doors.door import Admitted, Asked, Door, operations_of, split
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from odradek.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from odradek.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from odradek.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from odradek.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from odradek.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from odradek.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

__all__ = [
    "delete_groups_door",
    "describe_groups_door",
    "find_coordinator_door",
    "list_groups_door",
    "member_door",
    "offset_commit_door",
    "offset_delete_door",
    "offset_fetch_door",
]

_GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
_TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
COMMIT_IDS_SINCE = 10
FETCH_IDS_SINCE = 10
GROUPS_SINCE = 8
GROUP_ERROR_SINCE = 2
BATCHED_SINCE = 4
SHARE_SINCE = 6
GROUP_KEY, TRANSACTION_KEY, SHARE_KEY = 0, 1, 2


def member_door(refuse: Callable[[Any, ErrorCode], Any]) -> Door:
    """READ on the group, for what its members send."""

    def door(asked: Asked, request: Any) -> Any:
        """READ on the group."""
        if asked.may_group(Operation.READ, request.group_id):
            return None
        return refuse(request, _GROUP_DENIED)

    return door


def offset_commit_door(asked: Asked, request: OffsetCommitRequest) -> Admitted | OffsetCommitResponse | None:
    """READ on the group and on each topic."""
    if not asked.may_group(Operation.READ, request.group_id):
        return OffsetCommitResponse(0, [_no_commit(each, _GROUP_DENIED) for each in request.topics])
    by_id = asked.version >= COMMIT_IDS_SINCE

    judged = [(each, _refused_topic(asked, Operation.READ, each, by_id)) for each in request.topics]
    told = [_no_commit(topic, code) for topic, code in judged if code]
    if not told:
        return None
    allowed = [topic for topic, code in judged if not code]

    def merge(response: OffsetCommitResponse) -> OffsetCommitResponse:
        response.topics = [*response.topics, *told]
        return response

    return Admitted(attrs.evolve(request, topics=allowed), merge)


def _no_commit(topic: Any, code: ErrorCode) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        topic.name,
        topic.topic_id,
        [OffsetCommitResponsePartition(each.partition_index, code) for each in topic.partitions],
    )


def offset_delete_door(asked: Asked, request: OffsetDeleteRequest) -> Admitted | OffsetDeleteResponse | None:
    """DELETE on the group, READ on each topic."""
    if not asked.may_group(Operation.DELETE, request.group_id):
        return OffsetDeleteResponse(_GROUP_DENIED)
    allowed, refused = split(request.topics, lambda topic: asked.may(Operation.READ, topic.name))
    if not refused:
        return None
    told = [
        OffsetDeleteResponseTopic(
            topic.name,
            [OffsetDeleteResponsePartition(each.partition_index, _TOPIC_DENIED) for each in topic.partitions],
        )
        for topic in refused
    ]

    def merge(response: OffsetDeleteResponse) -> OffsetDeleteResponse:
        if not response.error_code:
            response.topics = [*response.topics, *told]
        return response

    return Admitted(attrs.evolve(request, topics=allowed), merge)


def offset_fetch_door(asked: Asked, request: OffsetFetchRequest) -> Admitted | OffsetFetchResponse:
    """DESCRIBE on each group and each topic. Where all offsets are asked for, hidden topics are left out."""
    if asked.version < GROUPS_SINCE:
        return _one_group(asked, request)
    allowed, refused = split(request.groups, lambda each: asked.may_group(Operation.DESCRIBE, each.group_id))
    by_id = asked.version >= FETCH_IDS_SINCE
    parted = [_topics_of(asked, group, by_id) for group in allowed]
    admitted = [group for group, _ in parted]

    def merge(response: OffsetFetchResponse) -> OffsetFetchResponse:
        for group, (_, hidden), answer in zip(allowed, parted, response.groups, strict=True):
            if group.topics is None:
                # The handler gives each its name, also where the client hears ids alone.
                answer.topics = [
                    each
                    for each in answer.topics
                    if asked.would(Operation.DESCRIBE, ResourceType.TOPIC, each.name)
                ]
            elif not answer.error_code:
                answer.topics = [*answer.topics, *hidden]
        denied = [OffsetFetchResponseGroup(each.group_id, [], _GROUP_DENIED) for each in refused]
        response.groups = [*response.groups, *denied]
        return response

    return Admitted(attrs.evolve(request, groups=admitted), merge)


def _refused_topic(asked: Asked, operation: Operation, topic: Any, by_id: bool) -> ErrorCode:
    """The error for a topic that stays outside: by its name, or since its id is unknown here."""
    name = asked.name_of(topic.topic_id) if by_id else topic.name
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.NONE if asked.may(operation, name) else _TOPIC_DENIED


def _topics_of(
    asked: Asked, group: OffsetFetchRequestGroup, by_id: bool
) -> tuple[OffsetFetchRequestGroup, list[OffsetFetchResponseTopics]]:
    """What may be asked of a group, and the refusals for its other topics."""
    if group.topics is None:
        return group, []
    judged = [(each, _refused_topic(asked, Operation.DESCRIBE, each, by_id)) for each in group.topics]
    hidden = [
        OffsetFetchResponseTopics(
            topic.name,
            topic.topic_id,
            [OffsetFetchResponsePartitions(index, -1, -1, "", code) for index in topic.partition_indexes],
        )
        for topic, code in judged
        if code
    ]
    return attrs.evolve(group, topics=[topic for topic, code in judged if not code]), hidden


def _one_group(asked: Asked, request: OffsetFetchRequest) -> Admitted | OffsetFetchResponse:
    """The versions that ask about one group."""
    if not asked.may_group(Operation.DESCRIBE, request.group_id):
        if asked.version >= GROUP_ERROR_SINCE:
            return OffsetFetchResponse(0, [], _GROUP_DENIED)
        return OffsetFetchResponse(0, [_no_offset(each, _GROUP_DENIED) for each in request.topics or ()])
    if request.topics is None:

        def hide(response: OffsetFetchResponse) -> OffsetFetchResponse:
            response.topics = [
                each
                for each in response.topics
                if asked.would(Operation.DESCRIBE, ResourceType.TOPIC, each.name)
            ]
            return response

        return Admitted(request, hide)
    allowed, refused = split(request.topics, lambda topic: asked.may(Operation.DESCRIBE, topic.name))
    told = [_no_offset(each, _TOPIC_DENIED) for each in refused]

    def merge(response: OffsetFetchResponse) -> OffsetFetchResponse:
        if not response.error_code:
            response.topics = [*response.topics, *told]
        return response

    return Admitted(attrs.evolve(request, topics=allowed), merge)


def _no_offset(topic: Any, code: ErrorCode) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        topic.name,
        [OffsetFetchResponsePartition(index, -1, -1, "", code) for index in topic.partition_indexes],
    )


def describe_groups_door(asked: Asked, request: DescribeGroupsRequest) -> Admitted:
    """DESCRIBE on each group."""
    allowed, refused = split(request.groups, lambda name: asked.may_group(Operation.DESCRIBE, name))

    def merge(response: DescribeGroupsResponse) -> DescribeGroupsResponse:
        if request.include_authorized_operations:
            for each in response.groups:
                if not each.error_code:
                    each.authorized_operations = operations_of(
                        asked.rights, ResourceType.GROUP, each.group_id
                    )
        denied = [DescribedGroup(_GROUP_DENIED, None, name) for name in refused]
        response.groups = [*denied, *response.groups]
        return response

    return Admitted(attrs.evolve(request, groups=allowed), merge)


def list_groups_door(asked: Asked, request: ListGroupsRequest) -> Admitted | None:
    """All groups for those who may DESCRIBE the cluster; others see the groups that they may DESCRIBE."""
    if asked.would(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return None

    def hide(response: ListGroupsResponse) -> ListGroupsResponse:
        response.groups = [
            each
            for each in response.groups
            if asked.would(Operation.DESCRIBE, ResourceType.GROUP, each.group_id)
        ]
        return response

    return Admitted(request, hide)


def delete_groups_door(asked: Asked, request: DeleteGroupsRequest) -> Admitted | None:
    """DELETE on each group."""
    names = list(dict.fromkeys(request.groups_names))
    allowed, refused = split(names, lambda name: asked.may_group(Operation.DELETE, name))
    if not refused:
        return None

    def merge(response: DeleteGroupsResponse) -> DeleteGroupsResponse:
        denied = [DeletableGroupResult(name, _GROUP_DENIED) for name in refused]
        response.results = [*response.results, *denied]
        return response

    return Admitted(attrs.evolve(request, groups_names=allowed), merge)


def find_coordinator_door(asked: Asked, request: FindCoordinatorRequest) -> Any:
    """DESCRIBE on the group or the transactional id; CLUSTER_ACTION for coordinators of share groups."""
    if asked.version < BATCHED_SINCE:
        code = _refused_key(asked, request.key_type, request.key)
        return FindCoordinatorResponse(0, code, code.message, -1, "", -1) if code else None
    allowed, refused = [], []
    for key in request.coordinator_keys:
        code = _refused_key(asked, request.key_type, key)
        if code:
            refused.append(Coordinator(key, -1, "", -1, code, _text_of(request.key_type, code)))
        else:
            allowed.append(key)
    if not refused:
        return None

    def merge(response: FindCoordinatorResponse) -> FindCoordinatorResponse:
        response.coordinators = [*response.coordinators, *refused]
        return response

    return Admitted(attrs.evolve(request, coordinator_keys=allowed), merge)


def _text_of(kind: int, code: ErrorCode) -> str:
    """Kafka tells a reason only for share groups."""
    return code.message if kind == SHARE_KEY else ""


def _refused_key(asked: Asked, kind: int, key: str) -> ErrorCode:
    if kind == GROUP_KEY and not asked.may_group(Operation.DESCRIBE, key):
        return _GROUP_DENIED
    if kind == TRANSACTION_KEY and not asked.may_transact(Operation.DESCRIBE, key):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if kind == SHARE_KEY and asked.version >= SHARE_SINCE and not asked.may_cluster(Operation.CLUSTER_ACTION):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return ErrorCode.NONE
