"""Doors of Metadata, DescribeCluster, DescribeTopicPartitions and AlterReplicaLogDirs, whose refusals must not
reveal which topics exist.
"""

from __future__ import annotations

from collections.abc import Callable

from odradek.metadata_quorum.topic_names import INTERNAL_TOPICS
from odradek.security.acls.rules import CLUSTER_NAME, Operation, ResourceType
from odradek.security.doors.door import Admitted, Asked, Door, operations_of, split
from odradek.security.doors.needing import hiding
from odradek.serving.authorized_operations import NOT_REQUESTED
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from odradek.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from odradek.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
)
from odradek.wire.messages.describe_topic_partitions import TopicRequest as NamedTopic
from odradek.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from odradek.wire.schema.versions import (
    METADATA_EMPTY_MEANS_NONE,
    METADATA_NO_CLUSTER_OPERATIONS,
    METADATA_QUERY_BY_ID,
)
from odradek.wire.structure import ZERO_UUID

__all__ = [
    "describe_cluster_door",
    "describe_topic_partitions_door",
    "metadata_door",
    "refuse_moves",
]

_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def metadata_door(creates_topics: Callable[[], bool]) -> Door:
    """Make the door of Metadata. It requires DESCRIBE on each topic, and CREATE on the topic or the cluster
    if Metadata creates the topic.

    Refusals do not reveal which topics exist. If all topics are requested, those that the client may not
    DESCRIBE are left out.
    """

    def door(asked: Asked, request: MetadataRequest) -> Admitted:
        """Require DESCRIBE on each topic. If Metadata creates the topic, also require CREATE on the topic or
        the cluster.
        """

        def with_operations(response: MetadataResponse) -> MetadataResponse:
            _fill_operations(asked, request, response)
            return response

        if request.topics is None or (asked.version < METADATA_EMPTY_MEANS_NONE and not request.topics):

            def hide(response: MetadataResponse) -> MetadataResponse:
                response.topics = hiding(asked, ResourceType.TOPIC, response.topics, "name")
                return with_operations(response)

            return Admitted(request, hide)
        if asked.version < METADATA_QUERY_BY_ID and any(
            each.name is None or each.topic_id != ZERO_UUID for each in request.topics
        ):
            return Admitted(request, with_operations)
        creates = request.allow_auto_topic_creation and creates_topics()
        refusals = [_metadata_refusal(asked, each, creates) for each in request.topics]
        refused = list({(t.name, t.topic_id): t for t in refusals if t is not None}.values())
        allowed = [each for each, refusal in zip(request.topics, refusals, strict=True) if refusal is None]

        def merge(response: MetadataResponse) -> MetadataResponse:
            response.topics = [*(response.topics if allowed else ()), *refused]
            return with_operations(response)

        # If all topics are refused, the handler gets an empty list. In version 0 such a list requests all
        # topics, so `merge` drops the topics of the handler's answer.
        return Admitted(request.replaced(topics=allowed), merge) if refused else Admitted(request, merge)

    return door


def _metadata_refusal(
    asked: Asked, topic: MetadataRequestTopic, creates: bool
) -> MetadataResponseTopic | None:
    """Make the refusal for a topic that the client may not DESCRIBE, or may not create with Metadata.

    Returns None if the topic is allowed.
    """
    name = topic.name
    by_id = name is None or (topic.topic_id != ZERO_UUID and asked.version >= METADATA_QUERY_BY_ID)
    if by_id:
        found = asked.name_of(topic.topic_id)
        if found is not None and asked.may(Operation.DESCRIBE, found):
            return None
        code = ErrorCode.UNKNOWN_TOPIC_ID if found is None else _DENIED
        return MetadataResponseTopic(code, None, topic.topic_id, False, [], NOT_REQUESTED)
    assert name is not None
    if asked.may(Operation.DESCRIBE, name):
        # The topic may be deleted before the handler runs. Metadata then creates it for the client, and the
        # controller checks CREATE again.
        is_missing = creates and name not in asked.topics.topics
        may_all = is_missing and asked.would(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)
        if not is_missing or may_all or asked.may(Operation.CREATE, name):
            return None
    return MetadataResponseTopic(_DENIED, name, ZERO_UUID, name in INTERNAL_TOPICS, [], NOT_REQUESTED)


def _fill_operations(asked: Asked, request: MetadataRequest, response: MetadataResponse) -> None:
    if request.include_topic_authorized_operations:
        for topic in response.topics:
            if topic.name is not None and topic.error_code != _DENIED:
                topic.topic_authorized_operations = operations_of(
                    asked.rights, ResourceType.TOPIC, topic.name
                )
    if request.include_cluster_authorized_operations and asked.version < METADATA_NO_CLUSTER_OPERATIONS:
        response.cluster_authorized_operations = cluster_operations(asked)


def cluster_operations(asked: Asked) -> int:
    """Return the client's allowed operations on the cluster as a bit field; 0 unless it may DESCRIBE the
    cluster.
    """
    if not asked.would(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return 0
    return operations_of(asked.rights, ResourceType.CLUSTER, CLUSTER_NAME)


def describe_topic_partitions_door(asked: Asked, request: DescribeTopicPartitionsRequest) -> Admitted:
    """Require DESCRIBE on each topic.

    If all topics are requested, those that the client may not DESCRIBE are left out.
    """
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

    return Admitted(request.replaced(topics=topics), merge)


def refuse_moves(request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    """Refuse each partition once, even if several directories name it."""
    moved: dict[str, dict[int, None]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            moved.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions))
    return AlterReplicaLogDirsResponse(
        0,
        [
            AlterReplicaLogDirTopicResult(
                name,
                [
                    AlterReplicaLogDirPartitionResult(index, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
                    for index in indexes
                ],
            )
            for name, indexes in moved.items()
        ],
    )


def describe_cluster_door(asked: Asked, request: DescribeClusterRequest) -> Admitted | None:
    """Let in all clients. The allowed operations on the cluster need DESCRIBE on the cluster."""
    if not request.include_cluster_authorized_operations:
        return None

    def merge(response: DescribeClusterResponse) -> DescribeClusterResponse:
        if not response.error_code:
            response.cluster_authorized_operations = cluster_operations(asked)
        return response

    return Admitted(request, merge)
