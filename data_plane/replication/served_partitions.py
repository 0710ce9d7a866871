"""The look-up of the partition for a request, or of the error for a partition that this broker does not
serve. PURE.

An error depends on two sources. `HostedTopics` has the hosted partitions, and the image has the partitions that
should be hosted.
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
    """Looks up partitions by topic and number. Hot paths read its dicts directly, which saves the time of a
    call.
    """

    __slots__ = ("_hosted", "_making", "_newest", "_node_id", "_workers", "by_id", "by_name", "recompressed")

    def __init__(
        self,
        node_id: int,
        hosted: HostedTopics,
        newest: NewestImage,
        making: Container[TopicIdPartition],
        workers: Workers,
    ) -> None:
        """Take the collections to search. `making` has the replicas whose logs are still to be made.
        `workers` are the threads for logs that are on no disk of this broker.
        """
        self.by_name, self.by_id = hosted.by_name, hosted.by_id
        self.recompressed = hosted.recompressed
        self._node_id = node_id
        self._hosted = hosted
        self._newest = newest
        self._making = making
        self._workers = workers

    def topic(self, topic: str | bytes) -> HostedTopic | None:
        """Return the hosted topic with this name or id; None if there is none."""
        return self._hosted.find(topic)

    def get(self, topic: str, index: int) -> Partition | None:
        """Return the hosted partition; None if it is not hosted."""
        return self._hosted.partition(topic, index)

    def find(self, topic: str, index: int) -> Partition:
        """Return the hosted partition.

        Raises `KafkaError`: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER or KAFKA_STORAGE_ERROR (its
        directory is offline).
        """
        partition = self._hosted.partition(topic, index)
        if partition is None:
            raise KafkaError(self.missing_error(topic, index))
        return partition

    def missing_error(self, topic: str, index: int) -> ErrorCode:
        """Return the error for a partition that this broker does not serve."""
        image = self._newest.image
        known = image.partition(topic, index)
        if known is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        is_being_made = TopicIdPartition(image.topics[topic].topic_id, index) in self._making
        if self._node_id in known.replicas and not is_being_made:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def lost_error(self, partition: Partition) -> ErrorCode:
        """Return the error for a partition that this broker led before, but leads no longer."""
        log = partition.log
        if self._hosted.holds(partition):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        topic = self._newest.image.topics_by_id.get(log.topic_id)
        if topic is None or log.partition not in topic.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return self.missing_error(log.topic, log.partition)

    def workers_for(self, log: PartitionLog) -> Workers:
        """Return the worker threads that may wait for the disk of this log. A hung disk blocks only its own
        threads.
        """
        return log.owner.workers if isinstance(log.owner, LogDir) else self._workers

    def workers_of(self, partition: Partition | None) -> Workers:
        """Return the worker threads that may wait for the disk of a partition. The partition may be None, if
        it is not hosted.
        """
        return self._workers if partition is None else self.workers_for(partition.log)
