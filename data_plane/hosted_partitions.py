"""Makes, removes and sets aside the replicas on this broker, as the metadata says, or when their directory
fails.

Theory of operation
-------------------
The broker names the partitions that an image has changed. For each of these partitions the log is found or
made, and the partition gets its new metadata. Nothing here awaits. If there are many new logs, `LogMaker`
makes them, and calls the broker again when they are ready.

* If the metadata does not name the directory of a replica, the directory is reported to the controller
  (`DirectoryAssignments`).
* A replica that no disk can take is refused, and its clients get KAFKA_STORAGE_ERROR. A replica that full disks
  have refused is tried again until one of them takes it.
* `rotten_replicas` handles a replica that the metadata calls LOST.
* A log without any metadata is a stray. Its directory is renamed and kept.

PURE except for the logs' own files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import attrs

from odradek.data_plane.disks.directory_assignments import DirectoryAssignments
from odradek.data_plane.disks.log_making import LogMaker
from odradek.data_plane.disks.replica_moves import ReplicaMoves
from odradek.data_plane.disks.replica_placement import (
    DirectoryAway,
    LogUnreadable,
    ReplicaPlacement,
    log_of,
)
from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.ports import BrokerHost
from odradek.data_plane.replication.hosted_topics import HostedTopic, HostedTopics
from odradek.data_plane.replication.partition import Partition
from odradek.data_plane.replication.replication import Replication
from odradek.data_plane.replication.rotten_replicas import Fate, RottenReplicas
from odradek.data_plane.topic_configs import TopicConfigs
from odradek.env.ports import DiskError, DiskRefused
from odradek.metadata_quorum.image.metadata_image import LOST_DIRECTORY, PartitionImage, TopicImage
from odradek.named_states import reached
from odradek.serving.timers import Timers
from odradek.wire.topic_partition import TopicIdPartition, TopicPartition

DISK_FULL_RETRY_SECONDS = 1.0


class HostingBroker(BrokerHost, Protocol):
    """The interface of the broker that `HostedPartitions` uses."""

    @property
    def node_id(self) -> int: ...

    @property
    def timers(self) -> Timers: ...

    @property
    def hosted(self) -> HostedTopics: ...

    def hosting_changed(self) -> None:
        """Called when this broker has begun or ceased to host partitions without a change of metadata."""


@attrs.frozen
class ReplicaDisks:
    """The parts that choose directories for replicas, make their logs, and report their directories to the
    controller.
    """

    placement: ReplicaPlacement
    maker: LogMaker
    assignments: DirectoryAssignments
    moves: ReplicaMoves


class HostedPartitions:
    """Keeps `broker.hosted` equal to the metadata. No other object changes `broker.hosted`."""

    def __init__(
        self,
        broker: HostingBroker,
        configs: TopicConfigs,
        disks: ReplicaDisks,
        replication: Replication,
        rotten: RottenReplicas,
    ) -> None:
        self._broker = broker
        self._node_id = broker.node_id
        self._newest = broker.newest
        self._hosted = broker.hosted
        self._log = broker.log
        self._configs = configs
        self._placement = disks.placement
        self._maker = disks.maker
        self._assignments = disks.assignments
        self._moves = disks.moves
        self._replication = replication
        self._rotten = rotten
        self._without_room: dict[TopicIdPartition, bool] = {}
        """Replicas that full disks have refused, which are tried again until a disk takes them. The value is
        true for a new replica.
        """
        self._tries_again = False
        self.may_lead = True
        """False until the metadata contain the registration of this process. While it is False, this broker
        leads no partition.
        """
        self._unsettled: dict[bytes, dict[int, None]] = {}
        """Partition numbers by topic id. The new metadata of these partitions are applied only when a pending
        change of their log has ended.
        """
        self._refused: dict[TopicIdPartition, None] = {}
        """Replicas that could not be hosted. The refusal of each has been logged once."""

    # -- configurations -------------------------------------------------------------------------------------------

    def apply_configs(self, names: Iterable[str], *, stricter_only: bool = False) -> None:
        """Apply the current configurations to the logs of these topics. If `stricter_only` is true, apply
        them only to topics whose `min.insync.replicas` rises.
        """
        for name in names:
            topic = self._hosted.by_name.get(name)
            if topic is None:
                continue
            config = self._configs.log_config(name)
            if stricter_only and config.min_insync_replicas <= topic.config.min_insync_replicas:
                continue
            topic.config = config
            self._hosted.note_config(topic)
            self._set_throttles(topic)
            for partition in list(topic.partitions.values()):
                partition.set_config(config)

    def _set_throttles(self, topic: HostedTopic) -> None:
        self._replication.set_throttled_replicas(topic.topic_id, self._configs.own(topic.name))

    # -- replicas that the metadata places here -------------------------------------------------------------------

    def apply_topic(self, topic: TopicImage, before: TopicImage | None, numbers: Iterable[int]) -> None:
        """Make, update or remove this broker's replicas of the partitions `numbers`, as the topic's new
        metadata says.

        `before` is the topic as this process knew it before; None for a new topic.
        """
        hosted = self._hosted.by_id.get(topic.topic_id)
        if hosted is None:
            hosted = HostedTopic(topic.name, topic.topic_id, self._configs.log_config(topic.name))
        for index in sorted(numbers):
            image = topic.partitions[index]
            partition = hosted.partitions.get(index)
            if self._node_id not in image.replicas:
                if partition is not None:
                    self._give_up(hosted, index, partition)
                continue
            if partition is None:
                is_new = before is None or index not in before.partitions
                partition = self._host(hosted, index, image, is_new=is_new)
                if partition is None:
                    continue
            if partition.log.home.is_unsettled:
                reached("disks.unsettled_replica_waits")
                # The state of this log is unknown until its disk answers. Until then the replica must neither lead
                # nor count as a copy of any record.
                self._unsettled.setdefault(topic.topic_id, {})[index] = None
                continue
            if partition.image is not image:
                self._apply(partition, image)
                if image.directory_of(self._node_id) == LOST_DIRECTORY:
                    self._take_lost(hosted, index, partition, image)
                else:
                    self._check_directory(partition, image)
                    self._replication.follow_metadata(partition)
        if hosted.partitions:
            self._hosted.put(hosted)
            self._set_throttles(hosted)

    def _apply(self, partition: Partition, image: PartitionImage) -> None:
        if not self.may_lead and image.leader == self._node_id:
            reached("replication.not_led_before_registration")
        partition.apply(image, self._node_id, may_lead=self.may_lead)

    def hold_leadership(self) -> None:
        """Lead no partition until `release_leadership`. Called before the first metadata."""
        assert not self._hosted.by_id, "a broker that hosts partitions may lead them already"
        self.may_lead = False

    def release_leadership(self) -> None:
        """Begin to lead the partitions that the metadata assign to this broker. Called once the metadata
        contain the registration of this incarnation.
        """
        self.may_lead = True
        for topic in list(self._hosted.by_id.values()):
            for partition in list(topic.partitions.values()):
                image = partition.image
                if (
                    image is not None
                    and image.leader == self._node_id
                    and not partition.log.home.is_unsettled
                ):
                    self._apply(partition, image)
                    self._replication.follow_metadata(partition)

    def _check_directory(self, partition: Partition, image: PartitionImage) -> None:
        """Report the directory of a replica to the controller again, if the metadata names another directory.
        The metadata does so if an older report has reached the controller after a newer report.
        """
        log = partition.log
        owner, named = log.owner, image.directory_of(self._node_id)
        if (
            isinstance(owner, LogDir)
            and named != owner.directory_id
            and not self._moves.explains(partition, named)
        ):
            self._assignments.note(log.topic_id, log.partition, owner.directory_id)

    def _give_up(self, hosted: HostedTopic, index: int, partition: Partition) -> None:
        """Remove the log of a replica that has been reassigned to other brokers."""
        del hosted.partitions[index]
        self._delete_replica(partition)
        self._log.info("partition.moved_away", topic=hosted.name, partition=index)

    def _delete_replica(self, partition: Partition) -> None:
        log = partition.log
        self._replication.forget(log.topic_id, log.partition)
        partition.resign()
        for log_dir in self._placement.log_dirs:
            if log_dir.get(log.topic, log.partition) is log:
                log_dir.delete_log(log.topic, log.partition)

    def _host(
        self, hosted: HostedTopic, index: int, image: PartitionImage, *, is_new: bool
    ) -> Partition | None:
        """Find or create the log of a partition. Returns None if no directory can take the log, or its
        directory is offline.
        """
        replica = TopicIdPartition(hosted.topic_id, index)
        is_new = is_new or self._without_room.get(replica, False) or self._maker.is_new(replica)
        in_metadata = image.directory_of(self._node_id)
        assigned = self._rotten.directory_for(replica, image)
        placement = self._placement
        log_dir = placement.find(hosted.name, index, hosted.topic_id, assigned)
        if log_dir is None:
            try:
                placement.check_readable(hosted.name, index)
                if self._moves.has_only_future(hosted.name, index, hosted.topic_id, assigned):
                    reached("moves.reported_swap_never_came")
                    # The controller has recorded the end of a move, but the directories were never swapped.
                    # So the log is still on its old disk, which is offline.
                    self._assignments.note(hosted.topic_id, index, LOST_DIRECTORY)
                    raise DirectoryAway(
                        "the replica was about to move here from a log directory that is offline"
                    )
                if not self._maker.may_make_now(hosted.name, index):
                    self._maker.make_later(replica, hosted.name, assigned, is_new=is_new)
                    return None
                log_dir = placement.create(
                    hosted.name, index, hosted.topic_id, hosted.config, assigned, is_new=is_new
                )
            except (DiskError, DirectoryAway) as error:
                if replica not in self._refused:
                    self._refused[replica] = None
                    self._log.error(
                        "partition.not_hosted", topic=hosted.name, partition=index, error=str(error)
                    )
                if isinstance(error, LogUnreadable) and in_metadata != LOST_DIRECTORY:
                    self._assignments.note(hosted.topic_id, index, LOST_DIRECTORY)
                if isinstance(error, DiskRefused):
                    self._try_again_later(replica, is_new=is_new)
                return None
        self._refused.pop(replica, None)
        placement.preferred.pop(TopicPartition(hosted.name, index), None)
        log = log_of(log_dir, hosted.name, index)
        if in_metadata not in (log_dir.directory_id, LOST_DIRECTORY):
            self._assignments.note(hosted.topic_id, index, log_dir.directory_id)
            if log.size_bytes and placement.is_away(in_metadata):
                self._log_doubt(log, log_dir)
        log.set_config(hosted.config)
        partition = hosted.partitions[index] = Partition(log, self._replication)
        self._moves.resume(partition)
        return partition

    def _log_doubt(self, log: PartitionLog, log_dir: LogDir) -> None:
        """Log that a replica lies in another directory than the metadata says, while the directory in the
        metadata is offline.

        A move to the offline directory was announced. If the swap never began, the log here is complete. If
        the disk of this log hung during the swap, the log is outdated. The controller treats the replica as
        empty, so an operator decides.
        """
        self._log.error(
            "partition.found_elsewhere",
            topic=log.topic,
            partition=log.partition,
            directory=log_dir.path,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
        )

    def _take_lost(
        self, hosted: HostedTopic, index: int, partition: Partition, image: PartitionImage
    ) -> None:
        """Handle a replica that the metadata calls LOST, as `rotten_replicas` describes."""
        replica = TopicIdPartition(hosted.topic_id, index)
        rotten = self._rotten
        fate = rotten.fate(replica, image, is_empty=not partition.log.size_bytes)
        if fate is Fate.BEGIN_ANEW:
            self._replication.forget(*replica)
            partition.resign()
            del hosted.partitions[index]
            for log_dir in self._placement.log_dirs:
                if log_dir.get(hosted.name, index) is partition.log:
                    rotten.note_set_aside(partition, log_dir, log_dir.set_rotten(hosted.name, index))
            fresh = self._host(hosted, index, image, is_new=False)
            if fresh is None:
                return
            partition, fate = fresh, Fate.FOLLOW
            self._apply(partition, image)
        owner = partition.log.owner
        if fate is not Fate.WAIT and isinstance(owner, LogDir):
            rotten.report_directory(replica, owner.directory_id, is_anew=fate is Fate.FOLLOW)
        if fate is Fate.FOLLOW:
            self._replication.follow_metadata(partition)
        else:
            self._replication.forget(*replica)

    def delete_topic(self, topic_id: bytes) -> None:
        """Remove this broker's logs of a deleted topic."""
        hosted = self._hosted.remove(topic_id)
        if hosted is None:
            return
        self._replication.forget_throttled(topic_id)
        for partition in list(hosted.partitions.values()):
            self._delete_replica(partition)

    # -- disks that hang ------------------------------------------------------------------------------------------

    def device_answers(self) -> None:
        """Apply the metadata that were held back while changes of the partitions' logs were pending."""
        waiting, self._unsettled = self._unsettled, {}
        topics = self._newest.image.topics_by_id
        for topic_id, numbers in waiting.items():
            topic = topics.get(topic_id)
            if topic is not None:
                self.apply_topic(topic, topic, [index for index in numbers if index in topic.partitions])
        if waiting:
            self._broker.hosting_changed()

    # -- disks that are full --------------------------------------------------------------------------------------

    def _try_again_later(self, replica: TopicIdPartition, *, is_new: bool) -> None:
        self._without_room[replica] = is_new
        if not self._tries_again:
            self._tries_again = True
            self._set_next_try()

    def _set_next_try(self) -> None:
        broker = self._broker
        broker.timers.at(broker.clock.monotonic() + DISK_FULL_RETRY_SECONDS, self._try_again)

    def _try_again(self) -> None:
        self._tries_again = bool(self._without_room)
        if not self._tries_again:
            return
        # Schedule the next attempt first, so that an error in this attempt does not end all attempts.
        self._set_next_try()
        self._maker.begin_change()
        topics = self._newest.image.topics_by_id
        replicas = dict(self._without_room)
        for topic_id in dict.fromkeys(replica.topic_id for replica in replicas):
            topic = topics.get(topic_id)
            if topic is not None:
                self.apply_topic(
                    topic, topic, [each.partition for each in replicas if each.topic_id == topic_id]
                )
        self._without_room = {}
        for replica, is_new in replicas.items():
            if replica in self._maker:
                continue
            if replica.topic_id in topics and self._hosted.partition(*replica) is None:
                self._try_again_later(replica, is_new=is_new)
        self._broker.hosting_changed()

    # -- logs that are on the disks -------------------------------------------------------------------------------

    def set_strays_aside(self) -> None:
        """Rename the directories of logs whose topic id is not in the metadata. The files of these logs are
        kept.
        """
        topics = self._newest.image.topics
        for log_dir in self._placement.log_dirs:
            for (topic, index), log in list(log_dir.logs.items()):
                image = topics.get(topic)
                known = None if image is None else image.partitions.get(index)
                if (
                    image is None
                    or image.topic_id != log.topic_id
                    or known is None
                    or self._node_id not in known.replicas
                ):
                    self._log.warning("partition.stray", topic=topic, partition=index, directory=log_dir.path)
                    log_dir.set_stray(topic, index)

    def directory_offline(self, log_dir: LogDir) -> None:
        """Stop serving the partitions of a log directory that has failed."""
        self._moves.directory_offline(log_dir)
        for hosted in list(self._hosted.by_name.values()):
            for index, partition in list(hosted.partitions.items()):
                if log_dir.get(hosted.name, index) is partition.log:
                    del hosted.partitions[index]
                    self._report_directory_before_its_end(hosted, index, log_dir)
                    self._replication.forget(hosted.topic_id, index)
                    partition.resign()
        self._broker.hosting_changed()

    def _report_directory_before_its_end(self, hosted: HostedTopic, index: int, log_dir: LogDir) -> None:
        """Report to the controller that a replica is in a directory which is going offline, unless the
        metadata already say so. Without the report, the controller could not know that the replica is lost.
        """
        image = self._newest.image.partition(hosted.name, index)
        if image is not None and image.directory_of(self._node_id) != log_dir.directory_id:
            self._assignments.note(hosted.topic_id, index, log_dir.directory_id)
