"""Check of committed records: when a broker reports records as committed, all in-sync replicas have them. PURE.

A client may rely on a record that was reported as committed. So the record must be in the page cache of every replica
in the ISR at that moment, even if the replica's process is down. If `flush.messages` demands it, the record must be
synced, too. The ISR is that of the newest metadata of any node. A replica that joined the ISR after the commit has the
record, too, because it joins only with all committed records. Replicas that have lost bytes by a fault are left out
(`replica_bytes`). The rule also holds after an unclean election: the fault model leaves one replica with all records
(`sim.storm.storm`), and that replica must win.

Each partition is checked once for each offset and each change of its metadata.
"""

from __future__ import annotations

from odradek.data_plane.log.log_config import LONG_MAX
from odradek.metadata_quorum.image.metadata_image import PartitionImage
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.answers.newest_metadata import NewestMetadata
from sim.checks.answers.replica_bytes import ReplicaBytes
from sim.checks.watched import Processes
from sim.history import SafetyViolation

__all__ = ["HeldRecords"]

CONFIGS_SETTLE_SECONDS = 30.0
"""The time in seconds after which all in-sync brokers have applied a changed configuration."""


class HeldRecords:
    """The check of committed records, with the offset up to which each partition was already checked."""

    def __init__(self, processes: Processes, newest: NewestMetadata, replicas: ReplicaBytes) -> None:
        self._processes = processes
        self.newest = newest
        self.replicas = replicas
        self._judged: dict[TopicIdPartition, tuple[PartitionImage, int]] = {}
        self.judged = 0

    def check(self, key: TopicIdPartition, end_offset: int, told: str) -> None:
        """Check that all in-sync replicas have all records below `end_offset`, which a broker reports as committed.

        `told` is the beginning of the error's text. Raises `SafetyViolation`.
        """
        partition = self.newest.partition(key)
        if partition is None or end_offset <= 0:
            return
        known = self._judged.get(key)
        if known is not None and known[0] is partition and known[1] >= end_offset:
            return
        self.judged += 1
        if self._short(key, partition, end_offset) is not None:
            self.newest.refresh()
            partition = self.newest.partition(key)
            wrong = None if partition is None else self._short(key, partition, end_offset)
            if wrong is not None:
                raise SafetyViolation(f"{told} {end_offset}, and {wrong}")
        if partition is not None:
            self._judged[key] = partition, end_offset

    def _short(self, key: TopicIdPartition, partition: PartitionImage, end_offset: int) -> str | None:
        """Describe an in-sync replica that lacks records below this offset; None if there is none."""
        for broker_id in partition.isr:
            if self.replicas.end_offset(broker_id, key) >= end_offset:
                continue
            there = self.replicas.reach(broker_id, key)
            if there < end_offset and not self.replicas.was_robbed(broker_id, key):
                return f"broker {broker_id}, which is in sync, has it up to {there}"
        return self._unsynced(key, partition, end_offset)

    def _unsynced(self, key: TopicIdPartition, partition: PartitionImage, end_offset: int) -> str | None:
        """Describe an in-sync replica that has synced fewer records than `flush.messages` demands; None if there is
        none.
        """
        if self._processes.world.now - self.newest.configs_changed_at < CONFIGS_SETTLE_SECONDS:
            return None
        for broker_id in partition.isr:
            hosted = self.replicas.hosted(broker_id, key)
            if hosted is None or hosted.log.config.flush_messages >= LONG_MAX:
                continue
            demanded = end_offset - hosted.log.config.flush_messages + 1
            if demanded <= hosted.log.log_start_offset:
                continue
            there = self.replicas.end_offset(broker_id, key, is_durable=True)
            if there < demanded and not self.replicas.was_robbed(broker_id, key, also_of_synced=True):
                return f"the disk of broker {broker_id}, which is in sync, has it up to {there}"
        return None

    def holders(self, key: TopicIdPartition, end_offset: int) -> int:
        """Count the replicas that have all records below this offset. Replicas that have lost bytes by a fault count,
        too.
        """
        partition = self.newest.partition(key)
        return sum(
            self.replicas.end_offset(broker_id, key) >= end_offset or self.replicas.has_lost(broker_id, key)
            for broker_id in (() if partition is None else partition.replicas)
        )
