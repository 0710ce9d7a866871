"""Reports about the log ends of replicas without a leader, which heartbeats carry to the controller (KIP-966).
With these reports the controller can elect the replica with the longest log. PURE.

A partition waits for an election if it has neither a leader nor an ISR nor eligible replicas. All of its
replicas may have lost records. Then the controller compares the remaining logs (KIP-966,
`unclean_recovery.py` of the controller). Each broker sees in its image which partitions wait, and reports the
ends of its logs without a request. Until a replica leads, these logs do not change.

A new report is urgent, so the next heartbeat is sent at once and carries it. Afterwards the usual heartbeats
repeat all reports, a part of them at a time. So a new controller, which has no reports, gets them again.
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
"""The most reports in one heartbeat. The controller may hold an election for each report, so this also limits
the elections in one turn of its loop.
"""


class _Epochs(Protocol):
    @property
    def leader_epoch(self) -> int: ...


class LeaderlessReplicas:
    """The replicas that have to be reported to the controller, in the order of their reports."""

    def __init__(self, node_id: int, newest: NewestImage, hosted: HostedTopics, controller: _Epochs) -> None:
        self._node_id = node_id
        self._newest = newest
        self._hosted = hosted
        self._controller = controller
        self._controller_epoch = -1
        self._waiting: dict[TopicIdPartition, None] = {}
        """The replicas to report; the next report takes the first ones."""
        self._urgent: dict[TopicIdPartition, None] = {}
        self._asked: list[TopicIdPartition] = []

    def follow(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Add the partitions that have lost their leader and all eligible replicas. Remove the partitions
        that no longer wait.
        """
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
        """True if at least one replica has not been reported to the current controller."""
        return bool(self._urgent)

    def next_reports(self) -> list[TopicPartitionLogInfo]:
        """Return the reports for the next heartbeat. The list is empty if any controller does not support
        such reports.
        """
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
        """Called when a controller has received the last reports. The next heartbeat then reports other
        replicas.
        """
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
        """Describe the end of a replica's log: its offset and its epoch. Returns None if the log cannot be
        read now, or the partition has a leader.
        """
        partition = self._hosted.partition(key.topic_id, key.partition)
        if partition is None or partition.image is None or partition.image.leader != NO_LEADER:
            return None
        log = partition.log
        if log.offline:
            return None
        # The log's newest leader epoch may have no records, if this broker led in that epoch and appended
        # nothing. So report the epoch of the last record.
        written = log.epochs.last_written(log.log_end_offset)
        return PartitionLogInfo(key.partition, written, partition.leader_epoch, log.log_end_offset, 0)

    def statistics(self) -> dict[str, int]:
        return {"waiting": len(self._waiting), "urgent": len(self._urgent)}
