"""Creates, deletes and describes topics, and describes the cluster. The functions are operations. PURE.

Each operation imports the message modules that it needs. An import takes a millisecond per class, so a command that
lists topics should not import the other messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from odradek.client.core.known_cluster import NO_TOPIC_ID, Broker, Partition, Topic
from odradek.client.core.operation import Operation
from odradek.client.core.requests import refresh_metadata, request
from odradek.client.core.scatter import (
    any_broker,
    deadline_of,
    item_error,
    reachable,
    scatter,
    within_quota,
)
from odradek.client.errors import broker_error
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore
    from odradek.client.core.scatter import CallError

__all__ = [
    "ClusterDescription",
    "CreatedTopic",
    "NewPartitions",
    "NewTopic",
    "create_partitions",
    "create_topics",
    "delete_topics",
    "describe_cluster",
    "describe_topic_partitions",
    "describe_topics",
]


@attrs.frozen
class NewTopic:
    """A topic to create. Without `assignments`, -1 for `partitions` or `replication_factor` means the
    broker's default.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] = attrs.field(factory=dict)
    assignments: Mapping[int, Sequence[int]] = attrs.field(factory=dict)


@attrs.frozen
class CreatedTopic:
    """The outcome for one `NewTopic`. `error` is None if the topic was created, or would be created
    (`validate_only`).
    """

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    error: KafkaError | None


@attrs.frozen
class NewPartitions:
    """The new total number of partitions of a topic. `assignments` has the broker ids for each added
    partition.
    """

    count: int
    assignments: Sequence[Sequence[int]] | None = None


@attrs.frozen
class ClusterDescription:
    """The cluster as one broker sees it. Brokers are sorted by id."""

    cluster_id: str
    controller_id: int
    brokers: tuple[Broker, ...]
    fenced: frozenset[int] = frozenset()
    """The ids of brokers that are registered but fenced: dead, starting or shutting down."""


def create_topics(
    core: ClientCore,
    topics: Sequence[NewTopic],
    *,
    validate_only: bool = False,
    timeout: float | None = None,
) -> Operation[list[CreatedTopic]]:
    """Create topics; return an outcome for each, in the order of `topics`.

    The request is not repeated after a lost connection, because the repetition might fail if the topic exists
    already. If a topic is refused because of the quota for controller changes, it is requested again when the
    quota allows it (KIP-599). Raises `ClientError`.
    """
    from odradek.wire.messages.create_topics import (
        CreatableReplicaAssignment,
        CreatableTopic,
        CreatableTopicConfig,
        CreateTopicsRequest,
    )

    deadline = deadline_of(core, timeout)
    wanted = [
        CreatableTopic(
            name=topic.name,
            num_partitions=-1 if topic.assignments else topic.partitions,
            replication_factor=-1 if topic.assignments else topic.replication_factor,
            assignments=[
                CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
                for index, replicas in topic.assignments.items()
            ],
            configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
        )
        for topic in topics
    ]
    outcomes: dict[str, CreatedTopic] = {}

    def ask(names: set[str]) -> Operation[Any]:
        asked = [topic for topic in wanted if topic.name in names]
        message = CreateTopicsRequest(
            topics=asked, timeout_ms=_milliseconds(deadline - core.now), validate_only=validate_only
        )
        return request(core, message, timeout=deadline - core.now, repeat_after_loss=False)

    def take(response: Any) -> Iterable[tuple[str, KafkaError | None]]:
        for answer in response.topics:
            error = item_error(answer.error_code, answer.error_message, f"topic {answer.name}")
            outcomes[answer.name] = CreatedTopic(
                answer.name, bytes(answer.topic_id), answer.num_partitions, answer.replication_factor, error
            )
            yield answer.name, error

    yield from within_quota(core, [topic.name for topic in topics], ask, take, deadline)
    lost = broker_error(
        ErrorCode.UNKNOWN_SERVER_ERROR, "the broker's answer does not name this topic", "topic"
    )
    return [
        outcomes.get(topic.name) or CreatedTopic(topic.name, NO_TOPIC_ID, -1, -1, lost) for topic in topics
    ]


def delete_topics(
    core: ClientCore, names: Sequence[str], *, timeout: float | None = None
) -> Operation[list[tuple[str, KafkaError | None]]]:
    """Delete topics by name; return each topic's error, or None on success. The request is not repeated after
    a lost connection.

    If a topic is refused because of the quota for controller changes, it is requested again when the quota
    allows it (KIP-599). Raises `ClientError`.
    """
    from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

    deadline = deadline_of(core, timeout)
    outcomes: dict[str, KafkaError | None] = {}

    def ask(asked: set[str]) -> Operation[Any]:
        these = [name for name in names if name in asked]
        message = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in these],
            topic_names=these,
            timeout_ms=_milliseconds(deadline - core.now),
        )
        return request(core, message, timeout=deadline - core.now, repeat_after_loss=False)

    def take(response: Any) -> Iterable[tuple[str, KafkaError | None]]:
        for answer in response.responses:
            error = item_error(answer.error_code, answer.error_message, f"topic {answer.name}")
            outcomes[answer.name] = error
            yield answer.name, error

    yield from within_quota(core, names, ask, take, deadline)
    lost = broker_error(
        ErrorCode.UNKNOWN_SERVER_ERROR, "the broker's answer does not name this topic", "topic"
    )
    return [(name, outcomes.get(name, lost)) for name in names]


def create_partitions(
    core: ClientCore,
    wanted: Mapping[str, NewPartitions | int],
    *,
    validate_only: bool = False,
    timeout: float | None = None,
) -> Operation[list[tuple[str, CallError | None]]]:
    """Add partitions to topics; return each topic's error, or None on success. An `int` is the new total.

    The request is not repeated after a lost connection, because the repetition might fail if the partitions
    exist already. Raises `ClientError`.
    """
    from odradek.wire.messages.create_partitions import (
        CreatePartitionsAssignment,
        CreatePartitionsRequest,
        CreatePartitionsTopic,
    )

    def topic_of(name: str) -> CreatePartitionsTopic:
        news = wanted[name]
        if isinstance(news, int):
            news = NewPartitions(news)
        assignments = (
            None
            if news.assignments is None
            else [CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in news.assignments]
        )
        return CreatePartitionsTopic(name=name, count=news.count, assignments=assignments)

    def message(names: list[str], timeout_ms: int) -> CreatePartitionsRequest:
        topics = [topic_of(name) for name in names]
        return CreatePartitionsRequest(topics=topics, timeout_ms=timeout_ms, validate_only=validate_only)

    def take(response: Any, _: list[str]) -> Iterable[tuple[str, KafkaError | None]]:
        for answer in response.results:
            yield answer.name, item_error(answer.error_code, answer.error_message, f"topic {answer.name}")

    outcomes = yield from scatter(
        core,
        wanted,
        any_broker,
        message,
        take,
        deadline=deadline_of(core, timeout),
        repeat_after_loss=False,
    )
    return list(outcomes.items())


def describe_topics(
    core: ClientCore, names: Sequence[str] | None = None, *, timeout: float | None = None
) -> Operation[list[Topic]]:
    """Describe the topics `names`, in this order. With None, describe all topics, sorted by name. Raises
    `KafkaError` for an unknown topic.
    """
    deadline = deadline_of(core, timeout)
    cluster = yield from refresh_metadata(core, names, timeout=deadline - core.now)
    return [cluster.topic(name) for name in (sorted(cluster.topics) if names is None else names)]


def describe_topic_partitions(
    core: ClientCore,
    names: Sequence[str] = (),
    *,
    page_size: int = 2000,
    timeout: float | None = None,
) -> Operation[list[Topic]]:
    """Describe the topics `names`, sorted by name. Without names, describe all topics. The description is fetched in
    pages of at most `page_size` partitions, one request per page (KIP-966).

    Raises `KafkaError` for an unknown topic, and `ClientError`.
    """
    from odradek.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest

    deadline = deadline_of(core, timeout)
    yield from reachable(core, deadline)
    asked = [TopicRequest(name=name) for name in sorted(set(names))]
    found: dict[str, Topic] = {}
    cursor = None
    while True:
        message = DescribeTopicPartitionsRequest(
            topics=asked, response_partition_limit=page_size, cursor=cursor
        )
        response = yield from request(core, message, timeout=deadline - core.now)
        for answer in response.topics:
            error = item_error(answer.error_code, None, f"topic {answer.name}")
            if error is not None:
                raise error
            topic = found.setdefault(
                answer.name, Topic(answer.name, bytes(answer.topic_id), answer.is_internal, {})
            )
            for each in answer.partitions:
                topic.partitions[each.partition_index] = Partition(
                    each.partition_index,
                    each.leader_id,
                    each.leader_epoch,
                    tuple(each.replica_nodes),
                    tuple(each.isr_nodes),
                    tuple(each.offline_replicas),
                    tuple(each.eligible_leader_replicas or ()),
                    tuple(each.last_known_elr or ()),
                )
        if response.next_cursor is None:
            return list(found.values())
        if cursor is not None and _place(response.next_cursor) <= _place(cursor):
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                "the pages of topics that the broker sends do not advance, so the list cannot be completed",
            )
        cursor = response.next_cursor


def describe_cluster(
    core: ClientCore, *, include_fenced: bool = False, timeout: float | None = None
) -> Operation[ClusterDescription]:
    """Describe the cluster: its id, controller and brokers.

    Fenced brokers are left out unless `include_fenced` is true (KIP-1073). Brokers before 4.0 do not list
    fenced brokers. Raises `KafkaError` and `ClientError`.
    """
    from odradek.wire.messages.describe_cluster import DescribeClusterRequest

    deadline = deadline_of(core, timeout)
    message = DescribeClusterRequest(include_fenced_brokers=include_fenced)
    response = yield from request(core, message, timeout=deadline - core.now)
    error = item_error(response.error_code, response.error_message, "cluster")
    if error is not None:
        raise error
    brokers = [Broker(b.broker_id, b.host, b.port, b.rack) for b in response.brokers]
    return ClusterDescription(
        response.cluster_id,
        response.controller_id,
        tuple(sorted(brokers, key=lambda broker: broker.node_id)),
        frozenset(b.broker_id for b in response.brokers if b.is_fenced),
    )


def _place(cursor: Any) -> TopicPartition:
    return TopicPartition(cursor.topic_name, cursor.partition_index)


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))
