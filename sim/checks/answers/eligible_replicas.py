"""Check of replicas that may become leader: they have all records that were committed (KIP-966). PURE.

Each replica in the ISR or ELR has all records below every high watermark that a leader had. If both sets are empty, the
same holds for the last known ELR. Replicas that have lost bytes by a fault are left out. Replicas of stopped processes
are checked, too, since such a process may restart with its page cache and lead.

The check of a partition is postponed while a leader has a newer partition epoch than all known images. The winner of
an unclean election has all records, too, because the fault model always leaves one replica with all records.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.metadata_quorum.image.metadata_image import PartitionImage
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.answers.newest_metadata import NewestMetadata
from sim.checks.answers.replica_bytes import ReplicaBytes
from sim.checks.watched import Hosted
from sim.history import SafetyViolation

__all__ = ["EligibleReplicas"]


class EligibleReplicas:
    """The check of replicas that may become leader. It keeps, for each partition, the highest high watermark that any
    leader had.
    """

    def __init__(self, newest: NewestMetadata, replicas: ReplicaBytes) -> None:
        self._newest = newest
        self._replicas = replicas
        self._committed: dict[TopicIdPartition, int] = {}
        self._changed: dict[TopicIdPartition, None] = {}
        """Partitions whose metadata has changed since the last check."""
        self.eligible_seen = self.last_known_seen = 0
        newest.on_change.append(self._on_change)

    def _on_change(self, key: TopicIdPartition, partition: PartitionImage) -> None:
        self._changed[key] = None

    def look(self, hosted: Sequence[Hosted]) -> None:
        """Check the partitions whose metadata has changed. Raises `SafetyViolation`."""
        ahead: dict[TopicIdPartition, int] = {}
        for each in hosted:
            partition = each.partition
            if not partition.is_leader:
                continue
            ahead[each.key] = max(ahead.get(each.key, -1), partition.partition_epoch)
            before = self._committed.get(each.key)
            high_watermark = partition.log.high_watermark
            if before is None or high_watermark > before:
                self._committed[each.key] = high_watermark
                if before is not None and partition.image is not None and partition.image.elr:
                    self._changed[each.key] = None
        if not self._changed:
            return
        self._newest.refresh()
        for key in list(self._changed):
            image = self._newest.partition(key)
            if image is None or ahead.get(key, -1) <= image.partition_epoch:
                del self._changed[key]
                if image is not None:
                    self._check(key, image)

    def look_at_all(self, hosted: Sequence[Hosted]) -> None:
        """Check all partitions. Raises `SafetyViolation`."""
        image = self._newest.image
        for topic_id, topic in ({} if image is None else image.topics_by_id).items():
            for index in topic.partitions:
                self._changed[TopicIdPartition(topic_id, index)] = None
        self.look(hosted)

    def _check(self, key: TopicIdPartition, image: PartitionImage) -> None:
        committed = self._committed.get(key, 0)
        if committed <= 0:
            return
        for broker_id in image.isr:
            if not self._replicas.was_robbed(broker_id, key):
                self._must_have(key, broker_id, committed, "is in sync")
        for broker_id in image.elr:
            self.eligible_seen += 1
            if not self._replicas.was_robbed(broker_id, key):
                self._must_have(key, broker_id, committed, "is eligible to lead")
        if not image.isr and not image.elr:
            for broker_id in image.last_known_elr:
                self.last_known_seen += 1
                if not self._replicas.has_lost(broker_id, key):
                    self._must_have(key, broker_id, committed, "was in sync last")

    def _must_have(self, key: TopicIdPartition, broker_id: int, committed: int, why: str) -> None:
        if self._replicas.reach(broker_id, key) < committed:
            raise SafetyViolation(
                f"{self._newest.name(key)}: broker {broker_id}, which {why}, has it up to "
                f"{self._replicas.reach(broker_id, key)}, and a leader had the high watermark {committed}"
            )
