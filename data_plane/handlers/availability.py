"""Whether clients find a partition's leader, and which of its replicas they would not find. PURE."""

from __future__ import annotations

from collections.abc import Mapping

from metadata_quorum.image.metadata_image import BrokerImage, PartitionImage
from wire.errors import ErrorCode


def _is_offline(node_id: int, partition: PartitionImage, brokers: Mapping[int, BrokerImage]) -> bool:
    """Whether a replica's broker is away, or the directory that it lies in."""
    broker = brokers.get(node_id)
    return broker is None or broker.fenced or not partition.is_online(node_id, broker)


def availability(
    partition: PartitionImage, brokers: Mapping[int, BrokerImage]
) -> tuple[ErrorCode, list[int]]:
    """Whether clients find a leader, and the replicas that they would not find."""
    offline = [node_id for node_id in partition.replicas if _is_offline(node_id, partition, brokers)]
    led = partition.leader >= 0 and partition.leader not in offline
    return ErrorCode.NONE if led else ErrorCode.LEADER_NOT_AVAILABLE, offline
