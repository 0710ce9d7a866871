"""The hosted partitions as requests look them up: found, or the error for a partition that is not served here. PURE.

`HostedTopics` has the hosted partitions, and the image has the partitions that should be hosted: an error depends
on both.
"""

from __future__ import annotations

from collections.abc import Container

from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.newest_image import NewestImage
from odradek.data_plane.replication.hosted_topics import HostedTopic, HostedTopics
from odradek.data_plane.replication.partition import Partition
from odradek.env.ports import Workers
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicIdPartition


class ServedPartitions:
    """Look-ups by topic and partition number. The dicts are read directly where a call would cost each request."""

    __slots__ = ("_hosted", "_making", "_newest", "_node_id", "_workers", "by_id", "by_name", "recompressed")

    def __init__(
        self,
        node_id: int,
        hosted: HostedTopics,
        newest: NewestImage,
        making: Container[TopicIdPartition],
        workers: Workers,
    ) -> None:
        """`making` are the replicas whose logs are still to be made; `workers` serve logs that are on no disk of
        this broker.
        """
        self.by_name, self.by_id = hosted.by_name, hosted.by_id
        self.recompressed = hosted.recompressed
        self._node_id = node_id
        self._hosted = hosted
        self._newest = newest
        self._making = making
        self._workers = workers

    def topic(self, topic: str | bytes) -> HostedTopic | None:
        """Return the topic of this name or id, if it is hosted."""
        return self._hosted.find(topic)

    def get(self, topic: str, index: int) -> Partition | None:
        """Return the partition, if it is hosted."""
        return self._hosted.partition(topic, index)

    def find(self, topic: str, index: int) -> Partition:
        """Return the hosted partition. Raises `KafkaError`: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER or
        KAFKA_STORAGE_ERROR (its directory is offline)."""
        partition = self._hosted.partition(topic, index)
        if partition is None:
            raise KafkaError(self.missing_error(topic, index))
        return partition

    def missing_error(self, topic: str, index: int) -> ErrorCode:
        """Choose the error for a partition that is not served here."""
        image = self._newest.image
        known = image.partition(topic, index)
        if known is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        is_being_made = TopicIdPartition(image.topics[topic].topic_id, index) in self._making
        if self._node_id in known.replicas and not is_being_made:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def lost_error(self, partition: Partition) -> ErrorCode:
        """Choose the error for a partition that was led here before."""
        log = partition.log
        if self._hosted.holds(partition):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        topic = self._newest.image.topics_by_id.get(log.topic_id)
        if topic is None or log.partition not in topic.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return self.missing_error(log.topic, log.partition)

    def workers_for(self, log: PartitionLog) -> Workers:
        """Return the threads that may wait for this log's disk: a hung disk blocks only its own."""
        return log.owner.workers if isinstance(log.owner, LogDir) else self._workers

    def workers_of(self, partition: Partition | None) -> Workers:
        """Return the threads for a partition that may not be hosted."""
        return self._workers if partition is None else self.workers_for(partition.log)
