"""The broker: which partitions live here, what the metadata log says about them, and what its handlers share.

Metadata reaches a broker only as images of the metadata log (`apply_metadata`). It asks the controller for changes
with messages over a `ControllerPort`, also when both run in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from data_plane.disks.directory_assignments import DirectoryAssignments, Replica
from data_plane.disks.directory_troubles import DirectoryTroubles
from data_plane.disks.disk_errors import DiskErrors
from data_plane.disks.log_making import LogMaker
from data_plane.disks.replica_placement import DirectoryAway, ReplicaPlacement, log_of
from data_plane.fetch_sessions import FetchSessions, replica_of
from data_plane.groups.coordinator import GroupCoordinator
from data_plane.groups.group_settings import GroupSettings
from data_plane.log.batch_work import LoopWork
from data_plane.log.directory.log_dir import LogDir
from data_plane.log.log_config import KEEP_CODEC, LogConfig
from data_plane.log.log_types import AppendResult
from data_plane.log.partition_log import PartitionLog
from data_plane.produce_workers import ProduceWorkers
from data_plane.replication.partition import Partition
from data_plane.replication.replication import Replication
from data_plane.replication.replication_settings import ReplicationSettings
from data_plane.replication.rotten_replicas import Fate, RottenReplicas
from metadata_quorum.config.config_resources import RESOURCE_BROKER
from metadata_quorum.config.effective_config import BrokerConfigLayers, effective_topic_config
from metadata_quorum.config.log_levels import LogLevels
from metadata_quorum.features import THIS_RELEASE, Release
from metadata_quorum.image.config_layers import layers_for
from metadata_quorum.image.metadata_image import (
    LOST_DIRECTORY,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from metadata_quorum.ports import ControllerPort
from odradek.env.ports import DiskError, DiskRefused, Env, Log, TaskGroup, Workers
from odradek.serving.contract import Context
from odradek.serving.timers import Timers
from wire.errors import ErrorCode, KafkaError
from wire.messages.fetch import FetchRequest

SHARED_LOG_CONFIGS_MAX = 10_000
DISK_FULL_RETRY_SECONDS = 1.0


@attrs.frozen(slots=True)
class BrokerSettings:
    """What a broker takes from its node's configuration."""

    node_id: int
    cluster_id: str
    auto_create_topics_enable: bool
    fetch_max_bytes: int
    fetch_session_slots_max: int
    fetch_session_eviction_ms: int
    request_timeout_ms: int
    request_partitions_max: int
    """Partitions in one page of DescribeTopicPartitions (`max.request.partition.size.limit`)."""
    groups: GroupSettings
    config_layers: BrokerConfigLayers
    """What the properties file says, below what brokers and topics are told while they run."""
    release: Release = THIS_RELEASE
    listener_of_brokers: str | None = None
    """The listener between brokers, where clients have others."""


class HostedTopic:
    """A topic of which this broker hosts partitions."""

    __slots__ = ("config", "name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes, config: LogConfig) -> None:
        self.name = name
        self.topic_id = topic_id
        self.config = config
        self.partitions: dict[int, Partition] = {}


@attrs.define
class ProducerIdBlock:
    """Producer ids that the controller has given to this broker: those from `next_id` to below `end_id` are left."""

    next_id: int = 0
    end_id: int = 0


class Broker:
    """Shared state of all request handlers of a node."""

    def __init__(
        self,
        settings: BrokerSettings,
        env: Env,
        log_dirs: list[LogDir],
        controller: ControllerPort,
        tasks: TaskGroup,
        log: Log,
        log_levels: LogLevels | None = None,
        unavailable_dirs: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = settings
        self.env = env
        self.clock = env.clock
        self.long_work = env.long_work
        self.log_dirs = log_dirs
        self.controller = controller
        self.tasks = tasks
        self.log = log
        self.disk_errors = DiskErrors(env.clock, log)
        self.image: MetadataImage = MetadataImage(cluster_id=settings.cluster_id)
        self.topics: dict[str, HostedTopic] = {}
        self.topics_by_id: dict[bytes, HostedTopic] = {}
        self.recompressed_topics: dict[bytes, None] = {}
        """Ids of the hosted topics whose `compression.type` is not `producer`."""
        self.produce_workers = ProduceWorkers(env)
        self.loop_work = LoopWork(lambda refill: self.woken.append(refill))
        """What the loop itself does to check clients' batches."""
        self.timers = Timers(env.clock, env.event, log, self.run_woken)
        self.on_produced: Callable[[Context, int, PartitionLog, AppendResult], None] | None = None
        """For observers within the process: called with each batch that a client's request has appended. The context is
        the connection's, the same for all its requests; the number is that of the request."""
        self.sessions = FetchSessions(
            settings.fetch_session_slots_max,
            settings.fetch_session_eviction_ms,
            env.random,
            is_known=lambda key: self.hosted(*key) is not None,
            is_follower=self._is_follower,
        )
        self.groups = GroupCoordinator(self, settings.groups)
        self.woken: list[Callable[[], None]] = []
        self.log_levels = log_levels if log_levels is not None else LogLevels()
        self.config_listeners: list[Callable[[], None]] = []
        """Called when this broker's own configuration has changed while it runs."""
        self._log_configs: dict[tuple[tuple[str, str], ...], LogConfig] = {}
        """By the values of a topic's own; of what this broker is told now."""
        self._own_resources = ((RESOURCE_BROKER, str(settings.node_id)), (RESOURCE_BROKER, ""))
        self.placement = ReplicaPlacement(log_dirs, unavailable_dirs or {}, log)
        self.assignments = DirectoryAssignments(
            settings.node_id,
            controller,
            env.clock,
            env.event,
            lambda: self.image,
            request_timeout_ms=settings.request_timeout_ms,
            log=log,
        )
        self.troubles = DirectoryTroubles(self, log=log)
        self.maker = LogMaker(
            settings.node_id,
            self.placement,
            tasks,
            image=lambda: self.image,
            config_for=self.log_config,
            hosted=lambda topics: self.apply_metadata(self.image, MetadataDelta(changed_topics=topics)),
        )
        self.replication = Replication(self, ReplicationSettings.of(settings.config_layers))
        self.rotten = RottenReplicas(self)
        self.producer_ids = ProducerIdBlock()
        self._without_room: dict[Replica, bool] = {}
        """Replicas that a full disk has not taken yet, tried again until it does; whether they are new ones."""
        self._tries_again = False
        self._not_hosted: dict[Replica, None] = {}
        """Replicas of which has been said that they are not served."""

    # -- partitions -----------------------------------------------------------------------------------------------

    def partition(self, topic: str, index: int) -> Partition:
        """The hosted partition. Raises `KafkaError`: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER or
        KAFKA_STORAGE_ERROR (its directory is offline)."""
        hosted = self.topics.get(topic)
        partition = None if hosted is None else hosted.partitions.get(index)
        if partition is None:
            raise KafkaError(self.missing_partition_error(topic, index))
        return partition

    def hosted(self, topic: str | bytes, index: int) -> Partition | None:
        """The partition of a topic's name or id, if it is hosted here."""
        found = self.topics_by_id.get(topic) if isinstance(topic, bytes) else self.topics.get(topic)
        return None if found is None else found.partitions.get(index)

    def _is_follower(self, request: FetchRequest, by_id: bool) -> bool:
        """Whether a fetch that names a replica may be that replica's: a registered broker, of this epoch where the request
        tells one, that is to hold something of what is asked for. Without security nothing better can be known."""
        replica_id = replica_of(request)
        broker = self.image.brokers.get(replica_id)
        if broker is None or replica_id == self.settings.node_id:
            return False
        if request.replica_state.replica_id >= 0 and request.replica_state.replica_epoch != broker.epoch:
            return False
        return any(
            partition is not None and partition.image is not None and replica_id in partition.image.replicas
            for topic in request.topics
            for asked in topic.partitions
            for partition in (self.hosted(topic.topic_id if by_id else topic.topic, asked.partition),)
        )

    def missing_partition_error(self, topic: str, index: int) -> ErrorCode:
        """Why a partition is not served here."""
        known = self.image.partition(topic, index)
        if known is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self.settings.node_id in known.replicas and not self._is_being_made(topic, index):
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _is_being_made(self, topic: str, index: int) -> bool:
        return (self.image.topics[topic].topic_id, index) in self.maker

    def lost_partition_error(self, partition: Partition) -> ErrorCode:
        """Why a partition that was led here is not any more."""
        log = partition.log
        hosted = self.topics_by_id.get(log.topic_id)
        if hosted is not None and hosted.partitions.get(log.partition) is partition:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        topic = self.image.topics_by_id.get(log.topic_id)
        if topic is None or log.partition not in topic.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return self.missing_partition_error(log.topic, log.partition)

    def run_woken(self) -> None:
        """Serve the parked requests that an append or a metadata change woke, once per turn of a connection."""
        while self.woken:
            woken, self.woken = self.woken, []
            for action in woken:
                try:
                    action()
                except Exception:
                    # Whoever woke it serves another client and must not suffer for this one.
                    self.log.exception("request.bug")

    # -- metadata -------------------------------------------------------------------------------------------------

    def apply_metadata(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Take a new image: create, update and delete logs so that they match it."""
        before, self.image = self.image, image
        self.maker.begin_change()
        configured: Iterable[str] = delta.changed_topic_configs
        if delta.features_changed or any(each in delta.changed_configs for each in self._own_resources):
            self._apply_broker_config()
            configured = list(self.topics)
        # A change of the ISR was decided by the `min.insync.replicas` that came before it: no high watermark may advance by
        # a lower one than either end of this change knows.
        self._apply_configs(configured, stricter_only=True)
        for topic_id in delta.deleted_topics:
            self._delete_topic(topic_id)
        for name, numbers in delta.changed_topics.items():
            topic = image.topics[name]
            self._apply_topic(topic, before.topics_by_id.get(topic.topic_id), numbers)
        self._apply_configs(configured)
        self.replication.brokers_changed(delta.changed_brokers)
        if image.troubled_directories != before.troubled_directories:
            self.replication.troubles_changed()
        self.rotten.look_again()
        self.groups.apply_metadata(image, delta)
        self.run_woken()

    @property
    def config_layers(self) -> BrokerConfigLayers:
        """What this broker's values are made of now: its file, and what the metadata log says of it and of all."""
        return layers_for(self.image, self.settings.config_layers.static, self.settings.node_id)

    def log_config(self, topic: str) -> LogConfig:
        """The effective configuration of a topic's logs: the topic's own values over this broker's.

        Topics with the same values of their own, most with none, share one.
        """
        overrides = self.image.topic_configs(topic)
        key = tuple(sorted(overrides.items()))
        config = self._log_configs.get(key)
        if config is None:
            if len(self._log_configs) >= SHARED_LOG_CONFIGS_MAX:
                self._log_configs.clear()
            properties = effective_topic_config(overrides, self.config_layers)
            config = self._log_configs[key] = LogConfig.from_properties(properties)
        return config

    def _apply_broker_config(self) -> None:
        """Every log follows its broker."""
        self._log_configs.clear()
        for throttle in self.replication.throttles:
            throttle.set_rate(self.config_layers)
        for listener in self.config_listeners:
            listener()
        self.troubles.config_changed()

    def _apply_configs(self, names: Iterable[str], *, stricter_only: bool = False) -> None:
        for name in names:
            hosted = self.topics.get(name)
            if hosted is None:
                continue
            if not stricter_only or (
                self.log_config(name).min_insync_replicas > hosted.config.min_insync_replicas
            ):
                self._apply_config(hosted)

    def _apply_config(self, hosted: HostedTopic) -> None:
        hosted.config = self.log_config(hosted.name)
        self._note_topic_config(hosted)
        for partition in list(hosted.partitions.values()):
            partition.set_config(hosted.config)

    def _note_topic_config(self, hosted: HostedTopic) -> None:
        for throttle in self.replication.throttles:
            throttle.set_replicas(hosted.topic_id, self.image.topic_configs(hosted.name))
        if hosted.config.codec == KEEP_CODEC:
            self.recompressed_topics.pop(hosted.topic_id, None)
        else:
            self.recompressed_topics[hosted.topic_id] = None

    def _apply_topic(self, topic: TopicImage, before: TopicImage | None, numbers: Iterable[int]) -> None:
        """Host what the metadata places here of the partitions `numbers`.

        `before` is the topic as this process knew it, None for a new one.
        """
        hosted = self.topics_by_id.get(topic.topic_id)
        if hosted is None:
            hosted = HostedTopic(topic.name, topic.topic_id, self.log_config(topic.name))
        node_id = self.settings.node_id
        for index in sorted(numbers):
            image = topic.partitions[index]
            partition = hosted.partitions.get(index)
            if node_id not in image.replicas:
                if partition is not None:
                    self._give_up(hosted, index, partition)
                continue
            if partition is None:
                is_new = before is None or index not in before.partitions
                partition = self._host(hosted, index, image, is_new=is_new)
                if partition is None:
                    continue
            if partition.image is not image:
                partition.apply(image, node_id)
                if image.directory_of(node_id) == LOST_DIRECTORY:
                    self._take_lost(hosted, index, partition, image)
                else:
                    self._check_directory(hosted, index, partition, image)
                    self.replication.match(partition)
        if hosted.partitions:
            self.topics[topic.name] = hosted
            self.topics_by_id[topic.topic_id] = hosted
            self._note_topic_config(hosted)

    def _check_directory(
        self, hosted: HostedTopic, index: int, partition: Partition, image: PartitionImage
    ) -> None:
        """An older word of this broker may have reached the controller behind a newer one: then tell it again."""
        owner = partition.log.owner
        if isinstance(owner, LogDir) and image.directory_of(self.settings.node_id) != owner.directory_id:
            self.assignments.note(hosted.topic_id, index, owner.directory_id)

    def _give_up(self, hosted: HostedTopic, index: int, partition: Partition) -> None:
        """The replica has been moved to other brokers: its log goes."""
        del hosted.partitions[index]
        self._delete_replica(hosted, index, partition)
        self.log.info("partition.moved_away", topic=hosted.name, partition=index)

    def _delete_replica(self, hosted: HostedTopic, index: int, partition: Partition) -> None:
        self.replication.forget(hosted.topic_id, index)
        partition.resign()
        for log_dir in self.log_dirs:
            if log_dir.get(hosted.name, index) is partition.log:
                log_dir.delete_log(hosted.name, index)

    def _host(
        self, hosted: HostedTopic, index: int, image: PartitionImage, *, is_new: bool
    ) -> Partition | None:
        """Find or create the log of a partition; None when no directory can take it, or its directory is away."""
        replica = (hosted.topic_id, index)
        is_new = is_new or self._without_room.get(replica, False) or self.maker.is_new(replica)
        told = image.directory_of(self.settings.node_id)
        assigned = self.rotten.directory_for(replica, image)
        placement = self.placement
        log_dir = placement.find(hosted.name, index, hosted.topic_id, assigned)
        if log_dir is None:
            try:
                if not self.maker.may_make_now(hosted.name, index):
                    self.maker.make_later(replica, hosted.name, assigned, is_new=is_new)
                    return None
                log_dir = placement.create(
                    hosted.name, index, hosted.topic_id, hosted.config, assigned, is_new=is_new
                )
            except (DiskError, DirectoryAway) as error:
                if replica not in self._not_hosted:
                    self._not_hosted[replica] = None
                    self.log.error(
                        "partition.not_hosted", topic=hosted.name, partition=index, error=str(error)
                    )
                if isinstance(error, DiskRefused):
                    self._try_again_later(replica, is_new=is_new)
                return None
        self._not_hosted.pop(replica, None)
        if told not in (log_dir.directory_id, LOST_DIRECTORY):
            self.assignments.note(hosted.topic_id, index, log_dir.directory_id)
        log = log_of(log_dir, hosted.name, index)
        log.config = hosted.config
        partition = hosted.partitions[index] = Partition(log, self.replication)
        return partition

    def _take_lost(
        self, hosted: HostedTopic, index: int, partition: Partition, image: PartitionImage
    ) -> None:
        """The metadata holds this replica for lost: see `rotten_replicas`."""
        replica = (hosted.topic_id, index)
        fate = self.rotten.fate(replica, image, is_empty=not partition.log.size_bytes)
        if fate is Fate.BEGIN_ANEW:
            self.replication.forget(*replica)
            partition.resign()
            del hosted.partitions[index]
            for log_dir in self.log_dirs:
                if log_dir.get(hosted.name, index) is partition.log:
                    self.rotten.note_set_aside(partition, log_dir, log_dir.set_rotten(hosted.name, index))
            fresh = self._host(hosted, index, image, is_new=False)
            if fresh is None:
                return
            partition, fate = fresh, Fate.FOLLOW
            partition.apply(image, self.settings.node_id)
        owner = partition.log.owner
        if fate is not Fate.WAIT and isinstance(owner, LogDir):
            self.rotten.tell_directory(replica, owner.directory_id, is_anew=fate is Fate.FOLLOW)
        if fate is Fate.FOLLOW:
            self.replication.match(partition)
        else:
            self.replication.forget(*replica)

    def _try_again_later(self, replica: Replica, *, is_new: bool) -> None:
        self._without_room[replica] = is_new
        if not self._tries_again:
            self._tries_again = True
            self.timers.at(self.clock.monotonic() + DISK_FULL_RETRY_SECONDS, self._try_again)

    def _try_again(self) -> None:
        self._tries_again = bool(self._without_room)
        if not self._tries_again:
            return
        # The next try before this one: an error in it must not be the end of all.
        self.timers.at(self.clock.monotonic() + DISK_FULL_RETRY_SECONDS, self._try_again)
        self.maker.begin_change()
        replicas = dict(self._without_room)
        for topic_id in dict.fromkeys(topic_id for topic_id, _ in replicas):
            topic = self.image.topics_by_id.get(topic_id)
            if topic is not None:
                self._apply_topic(topic, topic, [index for other, index in replicas if other == topic_id])
        self._without_room = {}
        for (topic_id, index), is_new in replicas.items():
            hosted = self.topics_by_id.get(topic_id)
            topic = self.image.topics_by_id.get(topic_id)
            if (topic_id, index) in self.maker:
                continue
            if topic is not None and (hosted is None or index not in hosted.partitions):
                self._try_again_later((topic_id, index), is_new=is_new)
        self.groups.match_leadership()

    def _delete_topic(self, topic_id: bytes) -> None:
        hosted = self.topics_by_id.pop(topic_id, None)
        if hosted is None:
            return
        self.recompressed_topics.pop(topic_id, None)
        for throttle in self.replication.throttles:
            throttle.forget(topic_id)
        if self.topics.get(hosted.name) is hosted:
            del self.topics[hosted.name]
        for index, partition in list(hosted.partitions.items()):
            self._delete_replica(hosted, index, partition)

    def set_strays_aside(self) -> None:
        """Rename the logs that the metadata lacks, or has under another id; remove none."""
        for log_dir in self.log_dirs:
            for (topic, index), log in list(log_dir.logs.items()):
                image = self.image.topics.get(topic)
                known = None if image is None else image.partitions.get(index)
                if (
                    image is None
                    or image.topic_id != log.topic_id
                    or known is None
                    or self.settings.node_id not in known.replicas
                ):
                    self.log.warning("partition.stray", topic=topic, partition=index, directory=log_dir.path)
                    log_dir.set_stray(topic, index)

    def directory_offline(self, log_dir: LogDir, reason: str) -> None:
        """A directory failed: stop serving its partitions."""
        self.log.error("directory.offline", directory=log_dir.path, reason=reason)
        for hosted in list(self.topics.values()):
            for index, partition in list(hosted.partitions.items()):
                if log_dir.get(hosted.name, index) is partition.log:
                    del hosted.partitions[index]
                    self._tell_directory_before_its_end(hosted, index, log_dir)
                    self.replication.forget(hosted.topic_id, index)
                    partition.resign()
        self.groups.match_leadership()

    def _tell_directory_before_its_end(self, hosted: HostedTopic, index: int, log_dir: LogDir) -> None:
        """The controller must know that this replica is gone too, also if it had not heard where it was."""
        image = self.image.partition(hosted.name, index)
        if image is not None and image.directory_of(self.settings.node_id) != log_dir.directory_id:
            self.assignments.note(hosted.topic_id, index, log_dir.directory_id)

    def workers_for(self, log: PartitionLog) -> Workers:
        """The threads that may wait for this log's disk: a hung one uses up no others."""
        return log.owner.workers if isinstance(log.owner, LogDir) else self.env.workers

    # -- durability on request ------------------------------------------------------------------------------------

    def sync_partition(self, partition: Partition, done: Callable[[KafkaError | None], None]) -> None:
        """Call `done` after a flush of the log that begins from now on (`flush.messages`); flushes are shared."""
        if partition.wait_for_sync(done):
            self.tasks.start_soon(self._sync, partition)

    async def _sync(self, partition: Partition) -> None:
        await self.clock.sleep_until(
            self.clock.monotonic() + 0.5 if self.env.buggify("log.late_flush") else 0.0
        )
        waiters = partition.take_sync_waiters()
        failure = None
        try:
            await self.workers_for(partition.log).run(partition.log.flush)
        except DiskError as error:
            partition.log.disk_failed(error)
            failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        for done in waiters:
            done(failure)
        self.run_woken()

    def stop(self) -> None:
        """End the groups, the making of logs and all following: the directories are about to be closed."""
        self.maker.stop()
        self.replication.stop()
        self.groups.stop()

    def statistics(self) -> dict[str, Any]:
        """Figures of the broker's parts."""
        return {
            "topics": len(self.topics),
            "partitions": sum(len(hosted.partitions) for hosted in self.topics.values()),
            "groups": self.groups.statistics(),
            "replication": self.replication.statistics(),
            "rot": self.rotten.statistics(),
            "fetch_sessions": self.sessions.statistics(),
            "timers": self.timers.statistics(),
            "produce_workers": self.produce_workers.statistics(),
            "loop_inflated_bytes": self.loop_work.bytes_inflated,
            **self.maker.statistics(),
        }
