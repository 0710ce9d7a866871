"""Administration: topics, configurations, the cluster. Operations, PURE.

Message modules are imported by the operation that needs them: each costs a millisecond per class, and a command
line that lists topics should not pay for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

import attrs

from odradek.client.cluster import NO_TOPIC_ID, Broker, Topic
from odradek.client.errors import broker_error, error_code
from odradek.client.operation import Operation
from odradek.client.requests import refresh_metadata, request
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.client.core import ClientCore

__all__ = [
    "ClusterDescription",
    "ConfigEntry",
    "ConfigSource",
    "CreatedTopic",
    "NewTopic",
    "ResourceType",
    "create_topics",
    "delete_topics",
    "describe_cluster",
    "describe_configs",
    "describe_topics",
]


@attrs.frozen
class NewTopic:
    """A topic to create. Without `assignments`, -1 stands for the broker's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] = attrs.field(factory=dict)
    assignments: Mapping[int, Sequence[int]] = attrs.field(factory=dict)


@attrs.frozen
class CreatedTopic:
    """What became of a `NewTopic`: `error` is None when it was created (or would be, with `validate_only`)."""

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    error: KafkaError | None


class ResourceType(IntEnum):
    """What a configuration belongs to (Kafka's ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4


class ConfigSource(IntEnum):
    """Where a value comes from (KIP-226)."""

    UNKNOWN = 0
    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


@attrs.frozen
class ConfigEntry:
    """One effective configuration value; None for a sensitive one."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool


@attrs.frozen
class ClusterDescription:
    """The cluster as one broker sees it; brokers in order of their ids."""

    cluster_id: str
    controller_id: int
    brokers: tuple[Broker, ...]


def create_topics(
    core: ClientCore, topics: Sequence[NewTopic], *, timeout: float, validate_only: bool = False
) -> Operation[list[CreatedTopic]]:
    """Create topics; one outcome per topic in the order of `topics`. Raises `ClientError`.

    Never repeated after a lost connection: the caller would be told of a topic that exists already.
    """
    from wire.messages.create_topics import (
        CreatableReplicaAssignment,
        CreatableTopic,
        CreatableTopicConfig,
        CreateTopicsRequest,
    )

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
    message = CreateTopicsRequest(
        topics=wanted, timeout_ms=_milliseconds(timeout), validate_only=validate_only
    )
    response = yield from request(core, message, timeout=timeout, repeat_after_loss=False)
    outcomes = {}
    for answer in response.topics:
        error = _error(answer.error_code, answer.error_message, f"topic {answer.name}")
        outcomes[answer.name] = CreatedTopic(
            answer.name, bytes(answer.topic_id), answer.num_partitions, answer.replication_factor, error
        )
    lost = broker_error(
        ErrorCode.UNKNOWN_SERVER_ERROR, "the broker did not mention it in its answer", "topic"
    )
    return [
        outcomes.get(topic.name) or CreatedTopic(topic.name, NO_TOPIC_ID, -1, -1, lost) for topic in topics
    ]


def delete_topics(
    core: ClientCore, names: Sequence[str], *, timeout: float
) -> Operation[list[tuple[str, KafkaError | None]]]:
    """Delete topics by name; one outcome per name. Raises `ClientError`. Never repeated after a lost connection."""
    from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

    message = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in names],
        topic_names=list(names),
        timeout_ms=_milliseconds(timeout),
    )
    response = yield from request(core, message, timeout=timeout, repeat_after_loss=False)
    outcomes = {
        answer.name: _error(answer.error_code, answer.error_message, f"topic {answer.name}")
        for answer in response.responses
    }
    lost = broker_error(
        ErrorCode.UNKNOWN_SERVER_ERROR, "the broker did not mention it in its answer", "topic"
    )
    return [(name, outcomes.get(name, lost)) for name in names]


def describe_topics(
    core: ClientCore, names: Sequence[str] | None, *, timeout: float
) -> Operation[list[Topic]]:
    """Topics in order of `names`, or all in order of their names. Raises `KafkaError` for one that is unknown."""
    cluster = yield from refresh_metadata(core, names, timeout=timeout)
    return [cluster.topic(name) for name in (sorted(cluster.topics) if names is None else names)]


def describe_cluster(core: ClientCore, *, timeout: float) -> Operation[ClusterDescription]:
    """The cluster's id, controller and brokers. Raises `KafkaError` and `ClientError`."""
    from wire.messages.describe_cluster import DescribeClusterRequest

    response = yield from request(core, DescribeClusterRequest(), timeout=timeout)
    error = _error(response.error_code, response.error_message, "cluster")
    if error is not None:
        raise error
    brokers = [Broker(b.broker_id, b.host, b.port, b.rack) for b in response.brokers]
    return ClusterDescription(
        response.cluster_id, response.controller_id, tuple(sorted(brokers, key=lambda broker: broker.node_id))
    )


def describe_configs(
    core: ClientCore,
    resource_type: ResourceType,
    name: str,
    keys: Sequence[str] | None = None,
    *,
    timeout: float,
) -> Operation[list[ConfigEntry]]:
    """The effective configuration of a topic or broker, in order of keys; `keys` None: all. Raises `KafkaError`.

    A broker answers for itself, so the request goes to the broker that `name` (its id) says.
    """
    from wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

    deadline = core.now + timeout
    node = None
    if resource_type is ResourceType.BROKER:
        yield from refresh_metadata(core, (), timeout=timeout)
        node = int(name)
        if node not in core.cluster.brokers:
            known = ", ".join(map(str, sorted(core.cluster.brokers)))
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"there is no broker {name} (brokers: {known})")
    resource = DescribeConfigsResource(
        resource_type=int(resource_type),
        resource_name=name,
        configuration_keys=None if keys is None else list(keys),
    )
    message = DescribeConfigsRequest(resources=[resource])
    response = yield from request(core, message, node=node, timeout=deadline - core.now)
    (result,) = response.results
    error = _error(result.error_code, result.error_message, f"{resource_type.name.lower()} {name}")
    if error is not None:
        raise error
    entries = [
        ConfigEntry(
            entry.name, entry.value, _source(entry.config_source), entry.read_only, entry.is_sensitive
        )
        for entry in result.configs
    ]
    return sorted(entries, key=lambda entry: entry.name)


def _source(number: int) -> ConfigSource:
    try:
        return ConfigSource(number)
    except ValueError:
        return ConfigSource.UNKNOWN


def _error(number: int, text: str | None, subject: str) -> KafkaError | None:
    return None if error_code(number) is ErrorCode.NONE else broker_error(number, text, subject)


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))
