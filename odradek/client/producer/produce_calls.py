"""The contents of Produce requests and of their answers, for the batches that `sender.py` has chosen. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.client.core.client_keys import ProducerSettings
from odradek.client.core.known_cluster import NO_TOPIC_ID, Broker, Cluster
from odradek.client.producer.accumulator import Batch, Lane
from odradek.wire.api import ApiKey, api_versions
from odradek.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.wire.schema.versions import PRODUCE_TOPIC_IDS

__all__ = ["answers_by_partition", "produce_request"]

_VERSION_MAX = api_versions(ApiKey.PRODUCE)[1]


def produce_request(
    settings: ProducerSettings, transactional_id: str | None, taken: Sequence[tuple[Lane, Batch]]
) -> tuple[ProduceRequest, int]:
    """Make the Produce request for these encoded batches. Also return the highest version to use for it: an older one
    if some topic has no id.
    """
    topics: dict[tuple[str, bytes], TopicProduceData] = {}
    version_max = _VERSION_MAX
    for lane, batch in taken:
        if lane.topic_id == NO_TOPIC_ID:
            version_max = PRODUCE_TOPIC_IDS - 1
        # The topic id is part of the key, because a queue may still have a request in flight for an older topic of
        # the same name.
        key = lane.topic, lane.topic_id
        topic = topics.get(key)
        if topic is None:
            topic = topics[key] = TopicProduceData(name=lane.topic, topic_id=lane.topic_id)
        assert batch.data is not None
        topic.partition_data.append(PartitionProduceData(index=lane.partition, records=batch.data))
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=settings.acks,
        timeout_ms=settings.request_timeout_ms,
        topic_data=list(topics.values()),
    )
    return request, version_max


def answers_by_partition(
    cluster: Cluster, response: ProduceResponse | None
) -> dict[tuple[str | bytes, int], PartitionProduceResponse]:
    """Map partitions to their answers. A key consists of the topic's name and the partition number. If the
    answer has no names, the key has the topic's id instead of its name.

    Also add the brokers that the response lists to the known cluster.
    """
    answers: dict[tuple[str | bytes, int], PartitionProduceResponse] = {}
    if response is None:
        return answers
    if response.node_endpoints:
        cluster.add_brokers(Broker(b.node_id, b.host, b.port, b.rack) for b in response.node_endpoints)
    for topic in response.responses:
        asked = topic.name or bytes(topic.topic_id)
        for answer in topic.partition_responses:
            answers[asked, answer.index] = answer
    return answers
