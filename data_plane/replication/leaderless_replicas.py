"""Reports of replicas whose partition has no leader, so that the replica with the longest log can lead. Heartbeats
carry the reports. PURE.

A partition waits if it has neither a leader nor an ISR nor eligible replicas: all of its replicas may have lost
records. Then the controller compares the logs that are left (KIP-966, `unclean_recovery.py` of the controller).
Each broker sees in its image which partitions wait, and reports the ends of its logs without a request. Until a
replica leads, these logs stay as they are.

A new report is urgent: the next heartbeat leaves at once and carries it. Each report is repeated afterwards, in
turns, with the usual heartbeats. So a new controller, which has no reports, gets them again.
"""

from __future__ import annotations

from itertools import islice
from typing import Protocol

from odradek.data_plane.newest_image import NewestImage
from odradek.data_plane.replication.hosted_topics import HostedTopics
from odradek.metadata_quorum.features import REPLICA_LOG_INFO
from odradek.metadata_quorum.image.metadata_image import (
    NO_LEADER,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
)
from odradek.wire.messages.broker_heartbeat import PartitionLogInfo, TopicPartitionLogInfo
from odradek.wire.topic_partition import TopicIdPartition

REPORTS_PER_HEARTBEAT_MAX = 1_000
"""The largest number of reports in one heartbeat. The controller may hold an election for each, so this is the
number of elections in one turn.
"""

NO_EPOCH = -1


class _Epochs(Protocol):
    @property
    def leader_epoch(self) -> int: ...


class LeaderlessReplicas:
    """Tracks which replicas have to be reported, and in which order."""

    def __init__(self, node_id: int, newest: NewestImage, hosted: HostedTopics, controller: _Epochs) -> None:
        self._node_id = node_id
        self._newest = newest
        self._hosted = hosted
        self._controller = controller
        self._controller_epoch = -1
        self._waiting: dict[TopicIdPartition, None] = {}
        """The replicas to report, in the order of the next reports."""
        self._urgent: dict[TopicIdPartition, None] = {}
        self._asked: list[TopicIdPartition] = []

    def follow(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Note which partitions begin to wait, and which no longer wait."""
        for topic_id, topic in delta.deleted_topics.items():
            for number in topic.partitions:
                self._settle(TopicIdPartition(topic_id, number))
        for name, numbers in delta.changed_topics.items():
            changed = image.topics[name]
            for number in numbers:
                key = TopicIdPartition(changed.topic_id, number)
                if self._waits(changed.partitions[number]):
                    self._waiting[key] = self._urgent[key] = None
                else:
                    self._settle(key)

    def _settle(self, key: TopicIdPartition) -> None:
        self._waiting.pop(key, None)
        self._urgent.pop(key, None)

    def _waits(self, partition: PartitionImage) -> bool:
        return (
            partition.leader == NO_LEADER
            and not partition.isr
            and not partition.elr
            and self._node_id in partition.replicas
        )

    @property
    def is_urgent(self) -> bool:
        """True if there is a replica that no controller has a report of yet."""
        return bool(self._urgent)

    def next_reports(self) -> list[TopicPartitionLogInfo]:
        """Make the reports for the next heartbeat; none if the controller lacks the feature."""
        epoch = self._controller.leader_epoch
        if epoch != self._controller_epoch:
            self._controller_epoch = epoch
            self._urgent = dict(self._waiting)
        self._asked = list(islice(self._urgent or self._waiting, REPORTS_PER_HEARTBEAT_MAX))
        if not self._asked or not self._is_known():
            return []
        topics: dict[bytes, TopicPartitionLogInfo] = {}
        for key in self._asked:
            info = self._info(key)
            if info is not None:
                topic = topics.setdefault(key.topic_id, TopicPartitionLogInfo(key.topic_id, []))
                topic.partition_log_info.append(info)
        return list(topics.values())

    def were_heard(self) -> None:
        """Note that a controller has received the last reports, so that the next heartbeat reports other replicas."""
        for key in self._asked:
            self._urgent.pop(key, None)
            if key in self._waiting:
                del self._waiting[key]
                self._waiting[key] = None
        self._asked = []

    def _is_known(self) -> bool:
        controllers = self._newest.image.controllers.values()
        return all(
            any(each.name == REPLICA_LOG_INFO and each.max_level >= 1 for each in controller.features)
            for controller in controllers
        )

    def _info(self, key: TopicIdPartition) -> PartitionLogInfo | None:
        """Describe how far the replica's log reaches; None while its log cannot be read here."""
        partition = self._hosted.partition(key.topic_id, key.partition)
        if partition is None or partition.image is None or partition.image.leader != NO_LEADER:
            return None
        log = partition.log
        if log.offline:
            return None
        # At a start this broker may have noted an epoch as the leader, because its metadata was from before its
        # registration.
        written = log.epoch_for_offset(log.log_end_offset - 1)
        epoch = NO_EPOCH if written is None else written
        return PartitionLogInfo(key.partition, epoch, partition.leader_epoch, log.log_end_offset, 0)

    def statistics(self) -> dict[str, int]:
        return {"waiting": len(self._waiting), "urgent": len(self._urgent)}
