"""The availability of a partition as clients see it: an error while it has no leader, and its offline
replicas. PURE.
"""

from __future__ import annotations

from collections.abc import Mapping

from odradek.metadata_quorum.image.metadata_image import BrokerImage, PartitionImage
from odradek.wire.errors import ErrorCode


def _is_offline(node_id: int, partition: PartitionImage, brokers: Mapping[int, BrokerImage]) -> bool:
    """True if the replica of the partition on broker `node_id` is offline, because the broker is unregistered
    or fenced, or because the replica's directory is offline.
    """
    broker = brokers.get(node_id)
    return broker is None or broker.fenced or not partition.is_online(node_id, broker)


def availability(
    partition: PartitionImage, brokers: Mapping[int, BrokerImage]
) -> tuple[ErrorCode, list[int]]:
    """Return an error code and the ids of the brokers whose replicas are offline.

    The code is LEADER_NOT_AVAILABLE without an online leader, otherwise NONE.
    """
    offline = [node_id for node_id in partition.replicas if _is_offline(node_id, partition, brokers)]
    led = partition.leader >= 0 and partition.leader not in offline
    return ErrorCode.NONE if led else ErrorCode.LEADER_NOT_AVAILABLE, offline
