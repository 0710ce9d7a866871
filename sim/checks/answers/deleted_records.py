"""Check of DeleteRecords: all replicas that may lead next have deleted the records too (KIP-107). PURE.

The replicas of active brokers, and the replicas in the ELR, must begin at the answer's low watermark or later. They
must still do so after a restart, when the checkpoint or the first segment decides where a log begins. The leader
decides by its own metadata image. So a broker counts as active if it is unfenced in that image, and no newer image
shows it as fenced or newly registered.
"""

from __future__ import annotations

from odradek.node.node import Node
from odradek.wire.messages.delete_records import DeleteRecordsResponse
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.answers.newest_metadata import NewestMetadata
from sim.checks.answers.replica_bytes import NOWHERE, ReplicaBytes
from sim.checks.watched import Processes, partition_name
from sim.checks.wiretap import Exchange
from sim.history import SafetyViolation
from sim.machine.members import Member

__all__ = ["DeletedRecords"]


class DeletedRecords:
    """The check of answers to DeleteRecords."""

    def __init__(self, processes: Processes, newest: NewestMetadata, replicas: ReplicaBytes) -> None:
        self._processes = processes
        self._newest = newest
        self._replicas = replicas
        self.seen = 0

    def asked(self, exchange: Exchange) -> bool:
        """Record the broker that receives the request, and its metadata image. Returns False if there is no broker."""
        found = self._processes.at(exchange.conn.peer)
        if found is None or found[1].broker is None:
            return False
        exchange.memo = found, found[1].broker.image
        return True

    def answered(self, exchange: Exchange, answer: object) -> None:
        """Check the offsets that a leader has confirmed in its answer. Raises `SafetyViolation`."""
        assert isinstance(answer, DeleteRecordsResponse)
        found, image = exchange.memo
        if self._processes.at(exchange.conn.peer) != found:
            return
        # The leader may answer because the image that it has just received fences a broker.
        self._newest.refresh()
        active = [
            broker_id
            for broker_id, broker in image.brokers.items()
            if not broker.fenced and self._newest.was_active_since(broker_id, image.offset)
        ]
        for topic in answer.topics:
            known = image.topics.get(topic.name)
            for part in topic.partitions:
                if known is not None and not part.error_code:
                    key = TopicIdPartition(known.topic_id, part.partition_index)
                    self._deleted(found, key, part.low_watermark, active)

    def _deleted(
        self, found: tuple[Member, Node], key: TopicIdPartition, low_watermark: int, active: list[int]
    ) -> None:
        broker = found[1].broker
        partition = None if broker is None else broker.hosted.partition(key.topic_id, key.partition)
        image = self._newest.partition(key)
        if partition is None or image is None or partition.image is None or not partition.is_leader:
            return
        self.seen += 1
        for broker_id in partition.image.replicas:
            if broker_id not in image.replicas or (broker_id not in active and broker_id not in image.elr):
                continue
            start_offset = self._replicas.start_offset(broker_id, key)
            is_sound = self._is_sound(broker_id) and not self._replicas.has_lost(broker_id, key)
            if NOWHERE < start_offset < low_watermark and is_sound:
                raise SafetyViolation(
                    f"{partition_name(partition)}: {found[0].name} says that all below {low_watermark} is deleted, and broker "
                    f"{broker_id} would begin at {start_offset} after a restart"
                )

    def _is_sound(self, broker_id: int) -> bool:
        """True if this broker's present process is registered, so that its checkpoints are complete."""
        image = self._newest.image
        known = None if image is None else image.brokers.get(broker_id)
        living = self._replicas.living(broker_id)
        return known is not None and living is not None and living.replication.broker_epoch == known.epoch
