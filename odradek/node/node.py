"""The parts of a node, and the order in which they come and go. PORTED.

Start: directories, metadata log, logs, registration, listeners (see ARCHITECTURE.md). Stop: tell the controller, stop
listening, commit what the metadata log holds, sync and close the logs, and leave the clean-shutdown marker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

import odradek
from data_plane.broker import Broker, BrokerSettings
from data_plane.disk_watch import DiskWatch
from data_plane.groups.settings import GroupSettings
from data_plane.handlers.build import build_table
from data_plane.log.config import LogConfig
from data_plane.log.log_dir import LogDir, LogDirContext
from data_plane.log_levels import LogLevels
from data_plane.metadata_log import MetadataLog
from metadata_quorum.image import MetadataDelta, MetadataImage
from metadata_quorum.meta_properties import NotALogDirectory
from metadata_quorum.quorum_state import FileQuorumStateStore
from metadata_quorum.service import ControllerService
from odradek.env.ports import Dir, DiskError, Env, Event, FileMissing, TaskGroup
from odradek.node.broker_lifecycle import BrokerLifecycle
from odradek.node.buffers import ReceiveBuffers
from odradek.node.config import NodeConfig
from odradek.node.connection_limits import ConnectionLimits
from odradek.node.connection_services import ConnectionServices
from odradek.node.dynamic_config import DynamicConfig
from odradek.node.metrics import LoopLateness, MetricsSources, metrics_page
from odradek.node.metrics_server import MetricsServer, watch_loop
from odradek.node.server import Server
from wire.messages.broker_registration import Listener as RegisteredListener

LOCALHOST = "localhost"
"""Advertised for a listener on every interface without an advertised host."""
FETCH_SESSION_EVICTION_MS = 120_000
"""Kafka's constant: a session is safe from smaller newcomers for so long."""
SEND_BUFFER_BYTES = 256 * 1024
"""Unless `socket.send.buffer.bytes` is set. Left alone the kernel queues megabytes of a fetch, and both ends work on
memory that has left the caches: 0.52 CPU-seconds per GB consumed, against 0.28; Kafka's 100 KiB give 0.40."""
RECEIVE_BYTES_MAX = 256 * 1024 * 1024
"""All half-received frames together, unless `queued.max.request.bytes` says otherwise."""


class NodeCannotStart(Exception):
    """The configuration and the disks do not fit; one line that says what to do."""


class NodeFailed(Exception):
    """The node cannot go on: its last log directory, or the one of its metadata log, is gone."""


class Node:
    """One broker and controller in one process."""

    def __init__(
        self,
        config: NodeConfig,
        env: Env,
        tasks: TaskGroup,
        log: Any,
        log_levels: LogLevels,
        *,
        poison: bool = False,
    ) -> None:
        self._config = config
        self._env = env
        self._tasks = tasks
        self._log = log
        self._log_levels = log_levels
        self._poison = poison
        self._failed = env.event()
        self._failure = ""
        self._log_dirs: list[LogDir] = []
        self._by_path: dict[str, LogDir] = {}
        self._unavailable: dict[str, str] = {}
        """Log directories that could not be opened at the start: path and reason."""
        self._servers: list[Server] = []
        self._addresses: list[str] = []
        self._ports: dict[str, int] = {}
        self._broker: Broker | None = None
        self._lifecycle: BrokerLifecycle | None = None
        self._controller: ControllerService | None = None
        self._metadata_log: MetadataLog | None = None
        self._metadata_dir: Dir | None = None
        self._services: ConnectionServices | None = None
        self._metrics: MetricsServer | None = None
        self._limits = ConnectionLimits()
        self._created_at = env.clock.monotonic()

    # -- start ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Come up to the point where clients are served."""
        clock = self._env.clock
        started_at = clock.monotonic()
        self._tasks.start_soon(self._watch_failure)
        await self._open_log_dirs()
        controller = await self._start_controller()
        broker = self._broker = self._make_broker(controller)
        broker.image = controller.committed_image
        DynamicConfig(broker, self._limits, self._by_path, self._tell_controller).apply()
        await self._load_logs()
        controller.subscribe(self._apply_metadata)
        image = controller.committed_image
        self._apply_metadata(image, MetadataDelta.everything(image))
        broker.set_strays_aside()
        for log_dir in self._log_dirs:
            self._tasks.start_soon(log_dir.run_background)
        self._tasks.start_soon(broker.timers.run)
        watch = DiskWatch(self._log_dirs, clock, self._log, broker.run_woken)
        self._tasks.start_soon(watch.run)
        self._open_listeners(broker)
        self._open_metrics(broker, controller)
        lifecycle = self._lifecycle = self._make_lifecycle(broker)
        self._tasks.start_soon(lifecycle.run)
        await lifecycle.is_unfenced.wait()
        self._tasks.start_soon(broker.assignments.run)
        for server in self._servers:
            self._tasks.start_soon(server.accept_loop)
            self._tasks.start_soon(server.reap_loop)
        self._log.info(
            "node.ready",
            address=",".join(self._addresses),
            partitions=broker.statistics()["partitions"],
            start_ms=round((clock.monotonic() - started_at) * 1000),
        )

    def facts(self) -> Mapping[str, Any]:
        """What `started` is told."""
        return {
            "node": self._config.node_id,
            "addresses": list(self._addresses),
            "cluster_id": self._log_dirs[0].cluster_id,
            **({} if self._metrics is None else {"metrics_port": self._metrics.port}),
        }

    async def _open_log_dirs(self) -> None:
        config, env = self._config, self._env
        context = LogDirContext(
            clock=env.clock,
            workers=env.workers,
            random=env.random,
            log=self._log,
            on_offline=self._directory_offline,
            producer_id_expiration_ms=config.get_int("producer.id.expiration.ms"),
            producer_id_expiration_check_interval_ms=config.get_int(
                "producer.id.expiration.check.interval.ms"
            ),
            retention_check_interval_ms=config.get_int("log.retention.check.interval.ms"),
            checkpoint_interval_ms=config.get_int("log.flush.offset.checkpoint.interval.ms"),
            high_watermark_checkpoint_interval_ms=config.get_int(
                "replica.high.watermark.checkpoint.interval.ms"
            ),
        )
        for path in config.log_dirs:
            try:
                workers = env.new_workers() if len(config.log_dirs) > 1 else env.workers
                log_dir = LogDir.open(
                    env.open_dir(path), attrs.evolve(context, workers=workers), config_for=self._log_config
                )
            except (DiskError, NotALogDirectory) as error:
                self._pass_over(path, error)
                continue
            self._log_dirs.append(log_dir)
            self._by_path[path] = log_dir
        if not self._log_dirs:
            raise NodeCannotStart(f"no log directory can be used: {'; '.join(self._unavailable.values())}")
        if len({log_dir.directory_id for log_dir in self._log_dirs}) != len(self._log_dirs):
            raise NodeCannotStart("two log directories have the same directory.id: one is a copy of another")
        clusters = {log_dir.cluster_id: None for log_dir in self._log_dirs}
        if len(clusters) != 1:
            raise NodeCannotStart(f"the log directories belong to different clusters: {', '.join(clusters)}")
        for log_dir in self._log_dirs:
            if log_dir.node_id != config.node_id:
                raise NodeCannotStart(
                    f"{log_dir.path} was formatted for node {log_dir.node_id}, but node.id is {config.node_id}"
                )

    def _pass_over(self, path: str, error: DiskError | NotALogDirectory) -> None:
        """One directory that cannot be opened takes only its own partitions along, unless the node needs it."""
        reason = str(error)
        if isinstance(error, FileMissing):
            reason = (
                f"log directory {path} is missing or was never formatted (`odradek storage format` does that)"
            )
        if isinstance(error, DiskError) and error.operation == "lock":
            raise error
        if path == self._config.metadata_log_dir or len(self._config.log_dirs) == 1:
            if isinstance(error, FileMissing):
                raise NodeCannotStart(reason) from error
            raise error
        self._unavailable[path] = reason
        self._log.error("directory.offline", directory=path, reason=reason)

    async def _load_logs(self) -> None:
        """All directories at once: each has a device of its own to wait for."""
        loaded = [self._env.event() for _ in self._log_dirs]

        async def load(log_dir: LogDir, done: Event) -> None:
            await log_dir.load()
            done.set()

        for log_dir, done in zip(self._log_dirs, loaded, strict=True):
            self._tasks.start_soon(load, log_dir, done)
        for done in loaded:
            await done.wait()

    def _log_config(self, topic: str) -> LogConfig:
        assert self._broker is not None
        return self._broker.log_config(topic)

    async def _start_controller(self) -> ControllerService:
        config, env = self._config, self._env
        root = self._metadata_dir = self._metadata_root()
        log = self._metadata_log = await env.workers.run(
            lambda: MetadataLog.open(root, clock=env.clock, logger=self._log)
        )
        bootstrap = log.bootstrap()
        controller = self._controller = ControllerService(
            config.controller_settings(),
            env,
            log,
            FileQuorumStateStore(log.directory),
            cluster_id=self._log_dirs[0].cluster_id,
            node_id=config.node_id,
            snapshot=log.newest_snapshot(),
            bootstrap=() if bootstrap is None else bootstrap.records,
            logger=self._log,
        )
        await controller.start(self._tasks)
        return controller

    def _metadata_root(self) -> Dir:
        """The directory of the metadata log: one of the log directories, or one of its own, which is locked here."""
        path = self._config.metadata_log_dir
        if path in self._by_path:
            return self._by_path[path].directory
        root = self._env.open_dir(path)
        root.lock()
        return root

    def _make_broker(self, controller: ControllerService) -> Broker:
        config = self._config
        settings = BrokerSettings(
            node_id=config.node_id,
            cluster_id=self._log_dirs[0].cluster_id,
            auto_create_topics_enable=config.get_bool("auto.create.topics.enable"),
            fetch_max_bytes=config.get_int("fetch.max.bytes"),
            fetch_session_slots_max=config.get_int("max.incremental.fetch.session.cache.slots"),
            fetch_session_eviction_ms=FETCH_SESSION_EVICTION_MS,
            request_timeout_ms=config.get_int("request.timeout.ms"),
            request_partitions_max=config.get_int("max.request.partition.size.limit"),
            groups=self._group_settings(),
            config_layers=config.config_layers,
        )
        return Broker(
            settings,
            self._env,
            self._log_dirs,
            controller.channel(),
            self._tasks,
            self._log,
            self._log_levels,
            self._unavailable,
        )

    def _group_settings(self) -> GroupSettings:
        config = self._config
        return GroupSettings(
            session_timeout_ms_min=config.get_int("group.min.session.timeout.ms"),
            session_timeout_ms_max=config.get_int("group.max.session.timeout.ms"),
            initial_rebalance_delay_ms=config.get_int("group.initial.rebalance.delay.ms"),
            group_size_max=config.get_int("group.max.size"),
            offset_metadata_bytes_max=config.get_int("offset.metadata.max.bytes"),
            offsets_retention_ms=config.get_int("offsets.retention.minutes") * 60_000,
            offsets_retention_check_interval_ms=config.get_int("offsets.retention.check.interval.ms"),
            offsets_commit_timeout_ms=config.get_int("offsets.commit.timeout.ms"),
            append_bytes_max=config.get_int("message.max.bytes"),
            topic_partitions=config.get_int("offsets.topic.num.partitions"),
            topic_replication_factor=config.get_int("offsets.topic.replication.factor"),
            topic_segment_bytes=config.get_int("offsets.topic.segment.bytes"),
            compression_type=config.get_int("offsets.topic.compression.codec"),
        )

    def _apply_metadata(self, image: MetadataImage, delta: MetadataDelta) -> None:
        assert self._broker is not None
        self._broker.apply_metadata(image, delta)

    # -- listeners ------------------------------------------------------------------------------------------------

    def _open_listeners(self, broker: Broker) -> None:
        config, env = self._config, self._env
        queued_bytes_max = config.get_int("queued.max.request.bytes")
        services = self._services = ConnectionServices(
            table=build_table(broker),
            buffers=ReceiveBuffers(queued_bytes_max if queued_bytes_max > 0 else RECEIVE_BYTES_MAX),
            clock=env.clock,
            tasks=self._tasks,
            new_event=env.event,
            log=self._log,
            frame_bytes_max=config.get_int("socket.request.max.bytes"),
            after_turn=broker.run_woken,
            poison=self._poison,
        )
        for listener in config.broker_listeners:
            try:
                opened = env.network.listen(
                    listener.host,
                    listener.port,
                    send_buffer_bytes=self._buffer_bytes("socket.send.buffer.bytes", SEND_BUFFER_BYTES),
                    receive_buffer_bytes=self._buffer_bytes("socket.receive.buffer.bytes", None),
                )
            except OSError as error:
                raise NodeCannotStart(
                    f"cannot listen on {listener.host or '*'}:{listener.port}: {error.strerror or error}"
                ) from error
            self._servers.append(
                Server(
                    services,
                    opened,
                    listener.name,
                    idle_ms_max=config.get_int("connections.max.idle.ms"),
                    limits=self._limits,
                )
            )
            self._ports[listener.name] = opened.port
            self._addresses.append(f"{listener.host or '0.0.0.0'}:{opened.port}")

    def _open_metrics(self, broker: Broker, controller: ControllerService) -> None:
        """The metrics page, if the configuration wants one; it answers before the broker is registered."""
        address = self._config.metrics_address
        if address is None:
            return
        assert self._services is not None
        env, (host, port) = self._env, address
        try:
            listener = env.network.listen(host, port)
        except OSError as error:
            raise NodeCannotStart(
                f"cannot listen on {host or '*'}:{port} for metrics: {error.strerror or error}"
            ) from error
        sources = MetricsSources(
            version=odradek.__version__,
            started_at=self._created_at,
            services=self._services,
            servers=self._servers,
            broker=broker,
            controller=controller,
            lateness=LoopLateness(),
        )
        metrics = self._metrics = MetricsServer(
            listener,
            clock=env.clock,
            tasks=self._tasks,
            log=self._log,
            render=lambda: metrics_page(sources),
        )
        self._tasks.start_soon(metrics.accept_loop)
        self._tasks.start_soon(watch_loop, env.clock, sources.lateness)
        self._log.info("node.metrics", address=f"{host or '0.0.0.0'}:{metrics.port}")

    def _buffer_bytes(self, key: str, unset: int | None) -> int | None:
        """A socket buffer's size as the file says it (-1: the kernel decides), or our own default."""
        if key not in self._config.explicit:
            return unset
        size = self._config.get_int(key)
        return None if size < 0 else size

    def _make_lifecycle(self, broker: Broker) -> BrokerLifecycle:
        config = self._config
        listeners = [
            RegisteredListener(
                each.name,
                each.host or LOCALHOST,
                each.port or self._ports[each.name],
                each.security_protocol_id,
            )
            for each in config.advertised_listeners
        ]
        clean_epochs = [log_dir.clean_shutdown_broker_epoch for log_dir in self._log_dirs]
        if self._unavailable:
            # What they held may be lost: this start is not a clean one.
            clean_epochs.append(None)
        previous = clean_epochs[0] if len(set(clean_epochs)) == 1 else None
        return BrokerLifecycle(
            broker,
            listeners=listeners,
            rack=config.rack,
            previous_broker_epoch=-1 if previous is None else previous,
            heartbeat_interval_ms=config.get_int("broker.heartbeat.interval.ms"),
            log=self._log,
        )

    # -- trouble --------------------------------------------------------------------------------------------------

    def _directory_offline(self, log_dir: LogDir, reason: str) -> None:
        if self._broker is not None:
            self._broker.directory_offline(log_dir, reason)
        if self._lifecycle is not None:
            self._lifecycle.hurry()
        if self._metadata_log is not None and log_dir.directory is self._metadata_dir:
            self._fail(f"the metadata log directory {log_dir.path} is offline: {reason}")
        elif all(each.offline_reason is not None for each in self._log_dirs):
            self._fail(f"all log directories are offline, the last one because of {reason}")

    def _tell_controller(self) -> None:
        if self._lifecycle is not None:
            self._lifecycle.hurry()

    def _fail(self, reason: str) -> None:
        if not self._failed.is_set():
            self._failure = reason
            self._failed.set()

    async def _watch_failure(self) -> None:
        await self._failed.wait()
        raise NodeFailed(self._failure)

    # -- stop -----------------------------------------------------------------------------------------------------

    async def shut_down(self) -> None:
        """Leave in order. A directory that fails meanwhile gets no clean-shutdown marker, and the others do."""
        assert self._lifecycle is not None
        assert self._controller is not None
        assert self._metadata_log is not None
        clock = self._env.clock
        began_at = clock.monotonic()
        if self._config.get_bool("controlled.shutdown.enable"):
            await self._lifecycle.shut_down()
        if self._broker is not None:
            self._broker.groups.stop()
        for server in self._servers:
            server.close()
        if self._metrics is not None:
            self._metrics.close()
        await self._controller.stop()
        await self._env.workers.run(self._metadata_log.close)
        for log_dir in self._log_dirs:
            try:
                await self._env.workers.run(log_dir.close_clean, self._lifecycle.broker_epoch)
            except DiskError as error:
                self._log.error("node.directory_not_closed", directory=log_dir.path, error=str(error))
        self._log.info("node.stopped", stop_ms=round((clock.monotonic() - began_at) * 1000))
