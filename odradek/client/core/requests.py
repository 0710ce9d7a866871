"""The operations on which all other operations are built: one request with retries, and requests for
metadata. PURE.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from odradek.client.core.known_cluster import Cluster
from odradek.client.core.operation import Operation, Wait
from odradek.client.errors import BrokerUnavailable, error_code, is_retriable
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.wire.schema.versions import METADATA_QUERY_BY_ID
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore

__all__ = [
    "PARTITIONS_MAX",
    "all_topics",
    "in_parts",
    "known_leaders",
    "refresh_by_id",
    "refresh_metadata",
    "request",
    "topics_with_metadata",
]


def request(
    core: ClientCore,
    message: Any,
    *,
    node: int | None = None,
    timeout: float,
    version_max: int | None = None,
    version_min: int = 0,
    repeat_after_loss: bool = True,
) -> Operation[Any]:
    """Send one request and return its response, which may have error codes.

    If no connection can be made, the client tries again until the deadline. If the connection breaks after the
    request was sent, the request is repeated only with `repeat_after_loss`. With `ClientConfig.fail_fast`, a client
    that has never reached a broker fails at once: most likely the address is wrong, or the broker is down. Raises
    `ClientError`.
    """
    deadline = core.now + timeout
    attempt = 0
    while True:
        call = core.call(
            message, node=node, deadline=deadline, version_max=version_max, version_min=version_min
        )
        yield Wait([call])
        if call.error is None:
            return call.response
        never_sent = isinstance(call.error, BrokerUnavailable)
        hopeless = never_sent and core.config.fail_fast and not core.ever_connected
        wake_at = core.now + core.backoff(attempt)
        if (
            hopeless
            or wake_at >= deadline
            or not is_retriable(call.error)
            or not (never_sent or repeat_after_loss)
        ):
            raise call.error
        attempt += 1
        yield Wait(until=wake_at)
        if node is not None and node not in core.cluster.brokers:
            yield from refresh_metadata(core, (), timeout=deadline - core.now)


def refresh_metadata(
    core: ClientCore, topics: Sequence[str] | None, *, timeout: float, auto_create: bool = False
) -> Operation[Cluster]:
    """Fetch the metadata of `topics` (None: all; empty: the brokers only) from any broker, and return the core's
    cluster.

    Errors of single topics are stored in the cluster instead of raised.
    """
    wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
    message = MetadataRequest(topics=wanted, allow_auto_topic_creation=auto_create)
    return (yield from _refresh(core, message, timeout=timeout, complete=topics is None))


def refresh_by_id(core: ClientCore, topic_ids: Iterable[bytes], *, timeout: float) -> Operation[Cluster]:
    """Fetch the metadata of the topics with these ids from any broker, and return the core's cluster. Unknown ids are
    ignored.
    """
    wanted = [MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in topic_ids]
    message = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
    return (yield from _refresh(core, message, timeout=timeout, version_min=METADATA_QUERY_BY_ID))


def _refresh(
    core: ClientCore,
    message: MetadataRequest,
    *,
    timeout: float,
    complete: bool = False,
    version_min: int = 0,
) -> Operation[Cluster]:
    deadline = core.now + timeout
    core.metadata_asked()
    response = yield from request(core, message, timeout=timeout, version_min=version_min)
    code = error_code(response.error_code)
    if code is ErrorCode.REBOOTSTRAP_REQUIRED and core.config.rebootstrap:
        core.rebootstrap(
            "a broker asked the client to connect to the bootstrap servers again (REBOOTSTRAP_REQUIRED)"
        )
        response = yield from request(core, message, timeout=deadline - core.now, version_min=version_min)
        code = error_code(response.error_code)
    core.metadata_came()
    if code is not ErrorCode.NONE:
        raise KafkaError(code)
    core.cluster.update(response, complete=complete)
    return core.cluster


def all_topics(core: ClientCore, *, timeout: float, skip_internal: bool) -> Operation[set[str]]:
    """Fetch the names of all topics that the client may see. Raises `ClientError` and `KafkaError`."""
    cluster = yield from refresh_metadata(core, None, timeout=timeout)
    return {topic.name for topic in cluster.topics.values() if not (topic.is_internal and skip_internal)}


def topics_with_metadata(
    core: ClientCore,
    names: Iterable[str],
    *,
    deadline: float,
    auto_create: bool = False,
    refresh: bool = False,
) -> Operation[None]:
    """Fetch the metadata of those given topics that are unknown (with `refresh`: of all given topics). Raises
    the `KafkaError` of the first topic that stays unknown.

    With `auto_create` the request may create a topic, so an unknown topic is requested again until the deadline.
    """
    attempt = 0
    while True:
        missing = [name for name in names if name not in core.cluster.topics]
        asked = list(names) if refresh else missing
        if not asked:
            return
        refresh = False
        yield from refresh_metadata(core, asked, timeout=deadline - core.now, auto_create=auto_create)
        errors = [core.cluster.topic_errors[name] for name in asked if name in core.cluster.topic_errors]
        if not errors:
            return
        awaited = {ErrorCode.LEADER_NOT_AVAILABLE}
        if auto_create:
            awaited.add(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        wake_at = core.now + core.backoff(attempt)
        if any(error not in awaited for error in errors) or wake_at >= deadline:
            for name in asked:
                core.cluster.topic(name)
        attempt += 1
        yield Wait(until=wake_at)


PARTITIONS_MAX = 8_000
"""The maximum number of partitions in one request. Odradek's brokers limit the elements of a request. Even if each
partition has a topic of its own, a request of this size stays within the limit.
"""


def in_parts(
    by_leader: Mapping[int, Sequence[TopicPartition]],
) -> Iterator[tuple[int, Sequence[TopicPartition]]]:
    """Yield (broker id, partitions) for each broker, with at most `PARTITIONS_MAX` partitions at a time."""
    for node, keys in by_leader.items():
        for begin in range(0, len(keys), PARTITIONS_MAX):
            yield node, keys[begin : begin + PARTITIONS_MAX]


def known_leaders(
    core: ClientCore, partitions: Iterable[TopicPartition]
) -> tuple[dict[int, list[TopicPartition]], list[TopicPartition]]:
    """Return partitions by the broker id of their leader. Also return a list of the partitions without a
    known leader.
    """
    by_leader: dict[int, list[TopicPartition]] = {}
    without: list[TopicPartition] = []
    for key in partitions:
        name, index = key
        topic = core.cluster.topics.get(name)
        partition = topic.partitions.get(index) if topic is not None else None
        if partition is None or partition.leader not in core.cluster.brokers:
            without.append(key)
        else:
            by_leader.setdefault(partition.leader, []).append(key)
    return by_leader, without
