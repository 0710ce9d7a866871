"""Doors of requests that ask about topics, or read and delete their records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from odradek.metadata_quorum.topic_names import INTERNAL_TOPICS
from odradek.security.acls.rules import CLUSTER_NAME, Operation, ResourceType
from odradek.security.doors.door import Admitted, Asked, Door, operations_of, split
from odradek.serving.authorized_operations import NOT_REQUESTED
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)
from odradek.wire.messages.describe_producers import PartitionResponse, TopicRequest, TopicResponse
from odradek.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
)
from odradek.wire.messages.describe_topic_partitions import TopicRequest as NamedTopic
from odradek.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from odradek.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from odradek.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)
from odradek.wire.structure import ZERO_UUID

__all__ = [
    "by_topic",
    "delete_records_door",
    "describe_producers_door",
    "describe_topic_partitions_door",
    "list_offsets_door",
    "metadata_door",
    "offset_for_leader_epoch_door",
]

_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
QUERY_BY_ID_SINCE = 12
CLUSTER_OPERATIONS_UNTIL = 10


def by_topic(
    operation: Operation,
    refuse: Callable[[Any], Any],
    name_of: Callable[[Any], str] = lambda topic: topic.name,
) -> Door:
    """A door of requests and responses with a list `topics`: refused ones stand behind the others."""

    def door(asked: Asked, request: Any) -> Admitted | None:
        allowed, refused = split(request.topics, lambda topic: asked.may(operation, name_of(topic)))
        if not refused:
            return None
        told = [refuse(topic) for topic in refused]

        def merge(response: Any) -> Any:
            response.topics = [*response.topics, *told]
            return response

        return Admitted(attrs.evolve(request, topics=allowed), merge)

    door.__doc__ = f"{operation.name} on each topic."
    return door


def _no_offsets(topic: ListOffsetsTopic) -> ListOffsetsTopicResponse:
    return ListOffsetsTopicResponse(
        topic.name,
        [
            ListOffsetsPartitionResponse(each.partition_index, _DENIED, -1, -1, -1)
            for each in topic.partitions
        ],
    )


def _no_deletion(topic: DeleteRecordsTopic) -> DeleteRecordsTopicResult:
    return DeleteRecordsTopicResult(
        topic.name,
        [
            DeleteRecordsPartitionResult(index, -1, _DENIED)
            for index in dict.fromkeys(each.partition_index for each in topic.partitions)
        ],
    )


def _no_producers(topic: TopicRequest) -> TopicResponse:
    return TopicResponse(
        topic.name,
        [PartitionResponse(index, _DENIED, _DENIED.message, []) for index in topic.partition_indexes],
    )


def _no_epochs(topic: OffsetForLeaderTopic) -> OffsetForLeaderTopicResult:
    return OffsetForLeaderTopicResult(
        topic.topic, [EpochEndOffset(_DENIED, each.partition, -1, -1) for each in topic.partitions]
    )


list_offsets_door = by_topic(Operation.DESCRIBE, _no_offsets)
delete_records_door = by_topic(Operation.DELETE, _no_deletion)
describe_producers_door = by_topic(Operation.READ, _no_producers)
_describe_epochs = by_topic(Operation.DESCRIBE, _no_epochs, lambda topic: topic.topic)


def offset_for_leader_epoch_door(asked: Asked, request: OffsetForLeaderEpochRequest) -> Any:
    """CLUSTER_ACTION for brokers, or DESCRIBE on each topic."""
    acts = asked.would(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
    return None if acts else _describe_epochs(asked, request)


def metadata_door(creates_topics: Callable[[], bool]) -> Door:
    """DESCRIBE on each topic; CREATE on the topic or the cluster where asking creates it.

    Refusals do not reveal which topics exist. Where all topics are asked for, hidden ones are left out.
    """

    def door(asked: Asked, request: MetadataRequest) -> Admitted:
        """DESCRIBE on each topic; CREATE on the topic or the cluster where asking creates it."""

        def with_operations(response: MetadataResponse) -> MetadataResponse:
            _tell_operations(asked, request, response)
            return response

        if request.topics is None or (asked.version == 0 and not request.topics):

            def hide(response: MetadataResponse) -> MetadataResponse:
                response.topics = [
                    topic
                    for topic in response.topics
                    if asked.would(Operation.DESCRIBE, ResourceType.TOPIC, topic.name or "")
                ]
                return with_operations(response)

            return Admitted(request, hide)
        if asked.version < QUERY_BY_ID_SINCE and any(
            each.name is None or each.topic_id != ZERO_UUID for each in request.topics
        ):
            return Admitted(request, with_operations)
        creates = request.allow_auto_topic_creation and creates_topics()
        told = [_metadata_refusal(asked, each, creates) for each in request.topics]
        refused = list({(t.name, t.topic_id): t for t in told if t is not None}.values())
        allowed = [each for each, refusal in zip(request.topics, told, strict=True) if refusal is None]

        def merge(response: MetadataResponse) -> MetadataResponse:
            response.topics = [*(response.topics if allowed else ()), *refused]
            return with_operations(response)

        # An empty list means all topics in version 0; whatever it gives is replaced.
        return Admitted(attrs.evolve(request, topics=allowed), merge) if refused else Admitted(request, merge)

    return door


def _metadata_refusal(
    asked: Asked, topic: MetadataRequestTopic, creates: bool
) -> MetadataResponseTopic | None:
    """The answer about a topic that the client may not see, or may not create by asking."""
    name = topic.name
    by_id = name is None or (topic.topic_id != ZERO_UUID and asked.version >= QUERY_BY_ID_SINCE)
    if by_id:
        found = asked.name_of(topic.topic_id)
        if found is not None and asked.may(Operation.DESCRIBE, found):
            return None
        code = ErrorCode.UNKNOWN_TOPIC_ID if found is None else _DENIED
        return MetadataResponseTopic(code, None, topic.topic_id, False, [], NOT_REQUESTED)
    assert name is not None
    if asked.may(Operation.DESCRIBE, name):
        # One that goes before the handler looks is created in the client's name: the controller judges CREATE again.
        is_missing = creates and name not in asked.topics.topics
        may_all = is_missing and asked.would(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)
        if not is_missing or may_all or asked.may(Operation.CREATE, name):
            return None
    return MetadataResponseTopic(_DENIED, name, ZERO_UUID, name in INTERNAL_TOPICS, [], NOT_REQUESTED)


def _tell_operations(asked: Asked, request: MetadataRequest, response: MetadataResponse) -> None:
    if request.include_topic_authorized_operations:
        for topic in response.topics:
            if topic.name is not None and topic.error_code != _DENIED:
                topic.topic_authorized_operations = operations_of(
                    asked.rights, ResourceType.TOPIC, topic.name
                )
    if request.include_cluster_authorized_operations and asked.version <= CLUSTER_OPERATIONS_UNTIL:
        response.cluster_authorized_operations = cluster_operations(asked)


def cluster_operations(asked: Asked) -> int:
    """The operations on the cluster that are told; 0 unless the client may DESCRIBE it."""
    if not asked.would(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return 0
    return operations_of(asked.rights, ResourceType.CLUSTER, CLUSTER_NAME)


def describe_topic_partitions_door(asked: Asked, request: DescribeTopicPartitionsRequest) -> Admitted:
    """DESCRIBE on each topic; where all are asked for, hidden ones are left out."""
    topics = request.topics
    refused: list[DescribeTopicPartitionsResponseTopic] = []
    if topics:
        topics, denied = split(topics, lambda topic: asked.may(Operation.DESCRIBE, topic.name))
        refused = [
            DescribeTopicPartitionsResponseTopic(
                _DENIED, each.name, ZERO_UUID, each.name in INTERNAL_TOPICS, []
            )
            for each in {each.name: each for each in denied}.values()
        ]
    else:
        names = [
            name
            for name in sorted(asked.topics.topics)
            if asked.would(Operation.DESCRIBE, ResourceType.TOPIC, name)
        ]
        topics = [NamedTopic(name) for name in names]
    names_none = not topics

    def merge(response: DescribeTopicPartitionsResponse) -> DescribeTopicPartitionsResponse:
        if names_none:
            response.topics = []
            response.next_cursor = None
        for topic in response.topics:
            topic.topic_authorized_operations = operations_of(
                asked.rights, ResourceType.TOPIC, topic.name or ""
            )
        response.topics = [*response.topics, *refused]
        return response

    return Admitted(attrs.evolve(request, topics=topics), merge)
