"""The broker: creates its parts, passes each metadata image to them, holds leaderships and coordinators back,
and stops them; shared by request handlers.

Metadata reaches a broker only as images of the metadata log (`apply_metadata`). To change metadata, the
broker sends requests to the controller over a `ControllerPort`, even if both run in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from odradek.data_plane.broker_settings import BrokerSettings
from odradek.data_plane.disks.directory_assignments import DirectoryAssignments
from odradek.data_plane.disks.directory_troubles import DirectoryTroubles
from odradek.data_plane.disks.disk_errors import DiskErrors
from odradek.data_plane.disks.log_making import LogMaker
from odradek.data_plane.disks.replica_moves import ReplicaMoves
from odradek.data_plane.disks.replica_placement import ReplicaPlacement
from odradek.data_plane.disks.scrubber import Scrubber
from odradek.data_plane.fetch_sessions import FetchSessions, replica_of
from odradek.data_plane.groups.coordinator import GroupCoordinator
from odradek.data_plane.hosted_partitions import HostedPartitions, ReplicaDisks
from odradek.data_plane.log.batch_work import LoopWork
from odradek.data_plane.log.cleaning.log_cleaner import CleanerSettings, LogCleaner
from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.log_types import AppendResult
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.newest_image import NewestImage
from odradek.data_plane.ports import TransactionVerifier
from odradek.data_plane.produce_workers import ProduceWorkers
from odradek.data_plane.quotas.client_quotas import ClientQuotas, QuotaSettings
from odradek.data_plane.replication.hosted_topics import HostedTopics
from odradek.data_plane.replication.leaderless_replicas import LeaderlessReplicas
from odradek.data_plane.replication.partition import Partition
from odradek.data_plane.replication.replication import Replication
from odradek.data_plane.replication.replication_settings import ReplicationSettings
from odradek.data_plane.replication.rotten_replicas import RottenReplicas
from odradek.data_plane.replication.served_partitions import ServedPartitions
from odradek.data_plane.telemetry.client_telemetry import ClientTelemetry
from odradek.data_plane.topic_configs import OwnConfig, TopicConfigs
from odradek.data_plane.transactions.coordinator import TransactionCoordinator
from odradek.data_plane.transactions.marker_writer import MarkerWriter
from odradek.data_plane.transactions.producer_ids import ProducerIds
from odradek.env.ports import DiskError, Log, TaskGroup, Workers
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.metadata_quorum.config.log_levels import LogLevels
from odradek.metadata_quorum.config.typed_settings import settings_of
from odradek.metadata_quorum.image.metadata_image import MetadataDelta, MetadataImage
from odradek.metadata_quorum.ports import ControllerPort
from odradek.serving.contract import Context
from odradek.serving.node_env import NodeEnv
from odradek.serving.steps import StepDriver
from odradek.serving.timers import Timers
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.fetch import FetchRequest


class Broker:
    """The parts and the state of one broker, which all its request handlers share."""

    def __init__(
        self,
        settings: BrokerSettings,
        env: NodeEnv,
        log_dirs: list[LogDir],
        controller: ControllerPort,
        tasks: TaskGroup,
        log: Log,
        log_levels: LogLevels | None = None,
        unavailable_dirs: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = settings
        self.node_id = settings.node_id
        self.request_timeout_ms, self.suspicion_ms = settings.request_timeout_ms, settings.suspicion_ms
        self.env, self.long_work = env, env.long_work
        self.clock, self.agreed_clock = env.clock, env.agreed_clock
        self.log_dirs = log_dirs
        self.controller, self.tasks, self.log = controller, tasks, log
        self.log_levels = log_levels if log_levels is not None else LogLevels()
        self.newest = NewestImage(MetadataImage(cluster_id=settings.cluster_id))
        self.hosted = hosted = HostedTopics()
        self.topics, self.topics_by_id = hosted.by_name, hosted.by_id
        self.configs = TopicConfigs(self.node_id, self.newest, settings.config_layers)
        self.own_config = OwnConfig(self.node_id, self.newest, self.configs, self.log_levels, log_dirs)
        self.disk_errors = DiskErrors(env.clock, log)
        self.produce_workers = ProduceWorkers(env)
        self.woken: list[Callable[[], None]] = []
        self.loop_work = LoopWork(lambda refill: self.woken.append(refill))
        """Checks clients' batches on the event loop, up to a limit per turn of a connection."""
        self.timers = Timers(env.clock, env.event, log, self.run_woken)
        self.steps = StepDriver(env.long_work, lambda: self.run_woken(), tasks)
        self.producer_ids = ProducerIds(self)
        self.on_produced: Callable[[Context, int, PartitionLog, AppendResult], None] | None = None
        """An optional callback, called with each batch that a client's request has appended. Its first
        arguments are the context of the connection, and the request's number on this connection.
        """
        self.config_listeners: list[Callable[[], None]] = []
        """Callbacks that run after this broker's own configuration has changed at runtime."""
        self.sessions = self._make_sessions()
        self.quotas = ClientQuotas(settings_of(QuotaSettings, settings.config_layers))
        self.telemetry = self._make_telemetry()
        self.disks = disks = self._make_disks(unavailable_dirs or {})
        self.placement, self.maker, self.assignments = disks.placement, disks.maker, disks.assignments
        self.moves = disks.moves
        self.served = ServedPartitions(self.node_id, hosted, self.newest, disks.maker, env.workers)
        self.groups = GroupCoordinator(self, settings.groups)
        self.marker_writer = MarkerWriter(self, self.served, self.groups)
        self.transactions = TransactionCoordinator(
            self, settings.transactions, self.producer_ids, self.marker_writer.write
        )
        self.leaderless = LeaderlessReplicas(self.node_id, self.newest, hosted, controller)
        self.transaction_verifier: TransactionVerifier = self.transactions.verifier
        """Asks the coordinator, before a transaction's first append to a partition, whether it is open."""
        self.troubles = DirectoryTroubles(self)
        self.cleaner = LogCleaner(env, log_dirs, tasks, log, self._cleaner_settings)
        self.replication = Replication(self, ReplicationSettings.of(settings.config_layers))
        self.rotten = RottenReplicas(self, self.replication.settings.fetch_bytes_max)
        self.scrubber = Scrubber(self, self.rotten, settings.scrub_interval_ms)
        self.hosting = HostedPartitions(self, self.configs, disks, self.replication, self.rotten)

    def _make_sessions(self) -> FetchSessions:
        return FetchSessions(
            self.settings.fetch_session_slots_max,
            self.settings.fetch_session_eviction_ms,
            self.env.random,
            is_known=lambda key: self.hosted.partition(*key) is not None,
            is_follower=self._is_follower,
        )

    def _make_telemetry(self) -> ClientTelemetry:
        log = self.log
        return ClientTelemetry(
            self.settings.telemetry_bytes_max,
            self.env.new_uuid,
            lambda name, reason: log.warning("client_metrics.unreadable", name=name, reason=reason),
        )

    def _make_disks(self, unavailable_dirs: Mapping[str, str]) -> ReplicaDisks:
        placement = ReplicaPlacement(self.log_dirs, unavailable_dirs, self.log)
        assignments = DirectoryAssignments(
            self.node_id,
            self.controller,
            self.clock,
            self.env.event,
            self.newest,
            request_timeout_ms=self.request_timeout_ms,
            log=self.log,
        )
        maker = LogMaker(
            self.node_id,
            placement,
            self.tasks,
            self.newest,
            config_for=self.log_config,
            hosted=lambda topics: self.apply_metadata(self.image, MetadataDelta(changed_topics=topics)),
        )
        return ReplicaDisks(placement, maker, assignments, ReplicaMoves(self, assignments))

    # -- partitions -----------------------------------------------------------------------------------------------

    def partition(self, topic: str, index: int) -> Partition:
        """Return a partition that this broker hosts, by topic and number. Raises the same errors as
        `ServedPartitions.find`.
        """
        return self.served.find(topic, index)

    def _is_follower(self, request: FetchRequest, by_id: bool) -> bool:
        """True if a fetch that names a replica may come from that replica.

        The replica must be a registered broker. If the request has a broker epoch, this epoch must be the one
        in the replica's registration. The replica must hold at least one requested partition. Without
        authentication a stricter check is impossible.
        """
        replica_id = replica_of(request)
        broker = self.image.brokers.get(replica_id)
        if broker is None or replica_id == self.node_id:
            return False
        if request.replica_state.replica_id >= 0 and request.replica_state.replica_epoch != broker.epoch:
            return False
        return any(
            partition is not None and partition.image is not None and replica_id in partition.image.replicas
            for topic in request.topics
            for asked in topic.partitions
            for partition in (
                self.hosted.partition(topic.topic_id if by_id else topic.topic, asked.partition),
            )
        )

    def is_brokers_fetch(self, request: FetchRequest) -> bool:
        """True if a fetch names another broker, and also the broker epoch with which that broker is
        registered. Clients never learn this epoch.
        """
        state = request.replica_state
        broker = self.image.brokers.get(state.replica_id)
        return broker is not None and state.replica_id != self.node_id and state.replica_epoch == broker.epoch

    def run_woken(self) -> None:
        """Answer the parked requests that an append or a metadata change has woken. Called once per turn of a
        connection.
        """
        while self.woken:
            woken, self.woken = self.woken, []
            for action in woken:
                try:
                    action()
                except Exception:
                    # The action belongs to another client's parked request. An error in the action must not
                    # fail the present request.
                    self.log.exception("request.bug")

    # -- metadata -------------------------------------------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        """The newest image of the metadata."""
        return self.newest.image

    def apply_metadata(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Apply a new metadata image: create, update and delete logs until they match it, and pass the
        changes in `delta` to all parts.
        """
        before, self.newest.image = self.newest.image, image
        hosting = self.hosting
        self.replication.departures.metadata_changed(before.brokers, image.brokers, delta.changed_brokers)
        self.maker.begin_change()
        configured: Iterable[str] = delta.changed_topic_configs
        if self.configs.concerns_broker(delta):
            self._apply_broker_config()
            configured = list(self.topics)
        # The controller decided each ISR change under either the old or the new `min.insync.replicas`. Until
        # all changes are applied, the high watermark advances by the larger of the two values.
        hosting.apply_configs(configured, stricter_only=True)
        for topic_id in delta.deleted_topics:
            hosting.delete_topic(topic_id)
        for name, numbers in delta.changed_topics.items():
            topic = image.topics[name]
            hosting.apply_topic(topic, before.topics_by_id.get(topic.topic_id), numbers)
        hosting.apply_configs(configured)
        self.replication.brokers_changed(delta.changed_brokers)
        if image.troubled_directories != before.troubled_directories:
            self.replication.troubles_changed()
        self.leaderless.follow(image, delta)
        self.rotten.look_again()
        if delta.changed_quotas:
            self.quotas.apply(image.access.client_quotas, delta.changed_quotas)
        self.telemetry.follow(image.configs, delta.changed_configs)
        self.groups.apply_metadata(delta)
        self.transactions.follow(delta)
        self.run_woken()

    def hold_leadership(self) -> None:
        """Lead no partition until `release_leadership`. Called when the broker starts.

        At the start, the broker finds metadata that the controller decided for an earlier incarnation of this
        broker. The leader epoch in that metadata may belong to a dead process. The in-sync replicas may
        include a log that lost records in a crash. Kafka's broker waits in the same way: it publishes
        metadata only after it has read its own registration.
        """
        self.hosting.hold_leadership()

    def release_leadership(self) -> None:
        """Begin to lead the partitions that the metadata assign to this broker. Called once the metadata
        contain the registration of this incarnation; further calls do nothing.
        """
        if not self.hosting.may_lead:
            self.hosting.release_leadership()
            self.run_woken()

    def hold_coordinators(self, is_held: bool) -> None:
        """Stop all coordinators of groups and transactions if `is_held` is true, otherwise start them. They
        stay stopped until this incarnation of the broker has been unfenced; see `Shards.hold`.
        """
        self.groups.hold(is_held)
        self.transactions.hold(is_held)
        self.run_woken()

    @property
    def config_layers(self) -> BrokerConfigLayers:
        """The layers of this broker's configuration: its properties file, and the metadata log's values for
        this broker and for all brokers.
        """
        return self.configs.broker_layers

    def log_config(self, topic: str) -> LogConfig:
        """Return the effective configuration of the logs of a topic."""
        return self.configs.log_config(topic)

    def _cleaner_settings(self) -> CleanerSettings:
        return settings_of(
            CleanerSettings, self.config_layers, threads_per_disk=self.settings.cleaner_threads_per_disk
        )

    def _apply_broker_config(self) -> None:
        """Pass this broker's changed configuration to the parts that use it."""
        self.configs.broker_changed()
        self.replication.set_throttled_rates(self.config_layers)
        for listener in self.config_listeners:
            listener()
        self.troubles.config_changed()
        self.cleaner.config_changed()
        self.groups.config_changed(self.config_layers)

    # -- disks ----------------------------------------------------------------------------------------------------

    def set_strays_aside(self) -> None:
        """Rename the directories of logs whose topic id is not in the metadata. The files of these logs are
        kept.
        """
        self.hosting.set_strays_aside()

    def directory_offline(self, log_dir: LogDir, reason: str) -> None:
        """Stop serving the partitions of a log directory that has failed, or was released."""
        if not log_dir.is_released:
            self.log.error("directory.offline", directory=log_dir.path, reason=reason)
        self.hosting.directory_offline(log_dir)

    def start_stored(self, log: PartitionLog) -> None:
        """Called when a log's new start offset has been written to the checkpoint on disk."""
        hosted = self.topics.get(log.topic)
        partition = None if hosted is None else hosted.partitions.get(log.partition)
        if partition is not None and partition.log is log:
            partition.start_stored()

    def device_answers(self) -> None:
        """Called when a late call to a device has returned, and the loop has applied its effects."""
        self.hosting.device_answers()
        self.run_woken()

    def hosting_changed(self) -> None:
        """Called when this broker has begun or ceased to host partitions without a change of metadata."""
        self.groups.follow_leadership()
        self.transactions.follow_leadership()

    def disk_answers(self, log_dir: LogDir) -> None:
        """Called when a hung device has answered again."""
        self.replication.disk_answers(log_dir)

    def suspect(self, partition: Partition, offset: int) -> None:
        """Request a check of the bytes at this offset of the partition's log. They may differ from the bytes
        that were written.
        """
        self.rotten.suspect(partition, offset)

    def workers_for(self, log: PartitionLog) -> Workers:
        """Return the worker threads that may wait for the disk of this log. A hung disk blocks only its own
        threads.
        """
        return self.served.workers_for(log)

    # -- durability on request ------------------------------------------------------------------------------------

    def sync_partition(self, partition: Partition, done: Callable[[KafkaError | None], None]) -> None:
        """Flush the partition's log, because `flush.messages` requires it. Then call `done` with None or the
        error. Requests that come during a flush share the next flush.
        """
        if partition.waiting.wait_for_sync(done):
            self.tasks.start_soon(self._sync, partition)

    async def _flush(self, log: PartitionLog) -> None:
        began_at = self.clock.monotonic()
        await self.workers_for(log).run(log.flush)
        if isinstance(log.owner, LogDir):
            log.owner.note_sync(self.clock.monotonic() - began_at)

    async def _sync(self, partition: Partition) -> None:
        """Flush the partition's log repeatedly, until no request waits for a flush. Appends that come during a
        flush share the next flush.
        """
        while True:
            await self.clock.sleep_until(
                self.clock.monotonic() + 0.5 if self.env.buggify("log.late_flush") else 0.0
            )
            waiters = partition.waiting.take_sync_waiters()
            if not waiters:
                return
            failure = await self._flush_newest(partition)
            for done in waiters:
                done(failure)
            self.run_woken()

    async def _flush_newest(self, partition: Partition) -> KafkaError | None:
        """Flush the log of a partition. If the replica moves to another disk meanwhile, flush again. Returns
        the failure, or None.
        """
        log = partition.log
        try:
            await self._flush(log)
            while log is not partition.log:
                log = partition.log
                await self._flush(log)
        except DiskError as error:
            log.home.failed(error)
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        return None

    def stop(self) -> None:
        """Stop all work that uses logs: coordinators, creation and moves of logs, cleaning, and fetching from
        leaders. The directories are closed next.
        """
        self.maker.stop()
        self.moves.stop()
        self.cleaner.stop()
        self.scrubber.stop()
        self.replication.stop()
        self.groups.stop()
        self.transactions.stop()

    def statistics(self, led_counts: tuple[int, int, int] | None = None) -> dict[str, Any]:
        """Return the statistics of the broker's parts, by name. `led_counts` is for `Replication.statistics`."""
        return {
            "topics": len(self.topics),
            "partitions": sum(len(topic.partitions) for topic in self.topics.values()),
            "groups": self.groups.statistics(),
            "transactions": self.transactions.statistics(),
            "replication": self.replication.statistics(led_counts),
            "leaderless": self.leaderless.statistics(),
            "rot": self.rotten.statistics(),
            "cleaner": self.cleaner.statistics(),
            "fetch_sessions": self.sessions.statistics(),
            "telemetry": self.telemetry.statistics(self.clock.monotonic()),
            "timers": self.timers.statistics(),
            "produce_workers": self.produce_workers.statistics(),
            "loop_inflated_bytes": self.loop_work.bytes_inflated,
            **self.maker.statistics(),
            **self.moves.statistics(),
        }
