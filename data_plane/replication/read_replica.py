"""The choice of the replica that a consumer should read from: an in-sync replica in the consumer's rack, or
else the leader (KIP-392). PURE.

This is Kafka's `RackAwareReplicaSelector`. Among the replicas in the consumer's rack the leader is preferred,
and then the replica with the greatest log end offset. Only in-sync replicas count, and their log must contain
the offset. Without such a replica, the consumer reads from the leader.
"""

from __future__ import annotations

from odradek.data_plane.replication.partition import Partition
from odradek.metadata_quorum.image.metadata_image import MetadataImage

NO_REPLICA = -1


def preferred_read_replica(
    partition: Partition, image: MetadataImage, node_id: int, listener: str, rack: str, offset: int
) -> int:
    """Return the id of the broker that the consumer should read from instead of this leader; -1 if it should
    read from the leader.
    """
    followers = partition.followers
    if not rack or not followers or _rack_of(image, node_id) == rack:
        return NO_REPLICA
    isr = partition.isr_state.isr
    best, best_rank = NO_REPLICA, (-1, -1, -1)
    for replica in followers:
        broker = image.brokers.get(replica.broker_id)
        if (
            broker is not None
            and not broker.fenced
            and broker.rack == rack
            and replica.broker_id in isr
            and replica.log_start_offset <= offset <= replica.log_end_offset
            and broker.endpoint(listener) is not None
        ):
            rank = (replica.log_end_offset, replica.last_caught_up_ms, -replica.broker_id)
            if rank > best_rank:
                best, best_rank = replica.broker_id, rank
    return best


def _rack_of(image: MetadataImage, node_id: int) -> str | None:
    broker = image.brokers.get(node_id)
    return None if broker is None else broker.rack
