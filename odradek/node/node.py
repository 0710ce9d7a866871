"""The parts of a node, the order in which they start and stop, and the reasons for which a running node gives
up. PORTED.

Start: directories, metadata log, controller listener, quorum; on a broker also logs, registration, listeners for
clients (see ARCHITECTURE.md). Stop: notify the controller, stop listening, commit what the metadata log holds, sync
and close the logs, and leave the clean-shutdown marker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

import odradek
from odradek.data_plane.broker import Broker
from odradek.data_plane.disks.disk_watch import DiskWatch
from odradek.data_plane.handlers.build import build_table
from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.metadata_log import MetadataLog
from odradek.env.ports import DiskError, Log, TaskGroup
from odradek.env.ports import Listener as OpenListener
from odradek.metadata_quorum.config.log_levels import LogLevels
from odradek.metadata_quorum.controller.controller import Controller
from odradek.metadata_quorum.controller.doors import ControllerDoors
from odradek.metadata_quorum.controller_channel import ControllerChannel
from odradek.metadata_quorum.controller_table import DescribedController, build_controller_table
from odradek.metadata_quorum.image.metadata_image import MetadataDelta, MetadataImage
from odradek.metadata_quorum.raft.voters import ReplicaKey
from odradek.metadata_quorum.replica.peers import Addresses, PeerConnections
from odradek.metadata_quorum.replica.quorum_state import FileQuorumStateStore
from odradek.metadata_quorum.service import MetadataService
from odradek.node.auditing import Auditing
from odradek.node.broker_lifecycle import BrokerLifecycle, ControllerOutOfReach
from odradek.node.configuration.disconnects import Disconnects
from odradek.node.configuration.dynamic_config import DynamicConfig, set_limits
from odradek.node.configuration.node_config import ListenerConfig, NodeConfig
from odradek.node.configuration.part_settings import (
    broker_settings,
    lifecycle_settings,
    listener_settings,
    metadata_log_settings,
    metadata_settings,
)
from odradek.node.connections.connection_limits import ConnectionLimits, client_room
from odradek.node.connections.connection_services import ConnectionServices
from odradek.node.connections.listeners_charging import ListenersCharging
from odradek.node.connections.server import Server
from odradek.node.controller_lifecycle import register_controller
from odradek.node.directories import Directories, NodeCannotStart, NodeCannotStartYet
from odradek.node.entrances import Entrances, World
from odradek.node.metrics.groups.group_lag import GroupLag
from odradek.node.metrics.groups.remote_ends import RemoteEnds
from odradek.node.metrics.image_figures import ImageCounter
from odradek.node.metrics.kafka_names import KafkaMemory
from odradek.node.metrics.metrics_page import MetricsSources
from odradek.node.metrics.page.loop_lateness import LoopLateness, PageCosts
from odradek.node.metrics.page.metrics_server import MetricsServer
from odradek.node.metrics.page.page_guard import page_guard
from odradek.node.metrics.page.readiness import unready_reason
from odradek.node.metrics.serving import serve_metrics
from odradek.node.node_listeners import NodeListeners
from odradek.node.quorum_start import catch_up
from odradek.node.unenforced_rules import UnenforcedRules
from odradek.security.acls.authorizer import Authorizer
from odradek.serving.node_env import NodeEnv
from odradek.wire.messages.broker_registration import Listener as RegisteredListener

__all__ = ["HostProcess", "Node", "NodeCannotStart", "NodeCannotStartYet", "NodeFailed"]

LOCALHOST = "localhost"
"""The advertised host of a listener that listens on every interface, if no advertised host is configured."""
OTHERS_SECONDS_MAX = 3.5
"""The maximum number of seconds that a stopping node waits for other nodes."""


class NodeFailed(Exception):
    """Raised if the node cannot continue: its metadata directory, its last log directory or every controller is out
    of reach.
    """


def _wait_for_answers(directories: Sequence[str]) -> None:
    """Do nothing. This is the default for a caller that can wait until the calls to these directories return."""


@attrs.frozen
class HostProcess:
    """The properties of the process that a node runs in."""

    log_levels: LogLevels = attrs.field(factory=LogLevels)
    """The levels of the node's log, which clients can change."""
    descriptors_max: int = -1
    """The number of files and sockets that the process may have open; -1: any number."""
    world: World = attrs.field(factory=World)
    """Functions for TLS, and for documents at web addresses."""
    leave_behind: Callable[[Sequence[str]], None] = attrs.field(default=_wait_for_answers)
    """Called when the node has stopped or failed, but calls to these directories still hang."""


class Node:
    """A broker, a controller, or both in one process."""

    def __init__(
        self,
        config: NodeConfig,
        env: NodeEnv,
        tasks: TaskGroup,
        log: Log,
        process: HostProcess,
        *,
        poison: bool = False,
    ) -> None:
        self._config = config
        self._process = process
        self._lifecycle_settings = lifecycle_settings(config)
        self._env = env
        env.agreed_clock.follow(config.get_int("log.retention.check.interval.ms"), log)
        self._tasks = tasks
        self._log = log
        self._log_levels = process.log_levels
        self._failed = env.event()
        self._failure = ""
        self._directories = Directories(
            config,
            env,
            log,
            on_offline=self._directory_offline,
            on_start_stored=self._start_stored,
            on_answer=self._device_answers,
            config_for=self._log_config,
        )
        self._addresses: list[str] = []
        self._broker: Broker | None = None
        self._lifecycle: BrokerLifecycle | None = None
        self._metadata: MetadataService | None = None
        self._metadata_log: MetadataLog | None = None
        self._peers: PeerConnections | None = None
        self._channel: ControllerChannel | None = None
        self._metrics: MetricsServer | None = None
        self._authorizer = None if config.authorizer is None else Authorizer(config.authorizer)
        room = client_room(process.descriptors_max)
        self._limits = ConnectionLimits(room=room)
        self._controller_limits = ConnectionLimits(room=room // 8 if config.is_broker else room)
        set_limits(self._controller_limits, config.config_layers, log)
        self._auditing = Auditing(config, env, log)
        if self._authorizer is not None:
            self._authorizer.auditor = self._auditing.auditor
        self._entrances = Entrances(
            config, env, log, self._newest_image, process.world, self._auditing.auditor
        )
        self._listeners = NodeListeners(
            env, tasks, log, listener_settings(config), self._entrances, poison=poison
        )
        self._created_at = env.clock.monotonic()
        self._is_starting = True
        self._has_joined = False
        """True once the quorum's tasks are running."""

    # -- start ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the node. Return when it serves its roles."""
        clock = self._env.clock
        started_at = clock.monotonic()
        self._tasks.start_soon(self._watch_failure)
        self._directories.open()
        self._auditing.open(self._tasks)
        await self._entrances.open(self._tasks)
        metadata = await self._join_quorum()
        await catch_up(
            metadata,
            self._config,
            self._directories.cluster_id,
            self._env,
            self._tasks,
            self._log,
            registration_ms=self._lifecycle_settings.initial_registration_ms,
            fail=self._fail,
        )
        rules = UnenforcedRules(self._config, self._log)
        rules.check(metadata.committed_image)
        metadata.subscribe(rules.apply)
        self._begin_to_authorize(metadata)
        if self._config.is_controller:
            self._tasks.start_soon(self._register_controller)
        partitions = await self._start_broker(metadata) if self._config.is_broker else 0
        if self._broker is None:
            self._open_metrics(metadata)
        self._log.info(
            "node.ready",
            address=",".join(self._addresses),
            partitions=partitions,
            start_ms=round((clock.monotonic() - started_at) * 1000),
        )
        self._is_starting = False

    @property
    def is_starting(self) -> bool:
        """True while the node does not serve all its roles yet."""
        return self._is_starting

    def stop_starting(self) -> None:
        """Make the worker threads of the start end soon; the caller cancels `start` itself."""
        if self._is_starting:
            self._directories.stop_loading()

    def facts(self) -> Mapping[str, Any]:
        """Return facts for `started`: node id, addresses, cluster id, and the port of the metrics page, if there is
        one.
        """
        return {
            "node": self._config.node_id,
            "addresses": list(self._addresses),
            "cluster_id": self._directories.cluster_id,
            **({} if self._metrics is None else {"metrics_port": self._metrics.port}),
        }

    @property
    def broker(self) -> Broker | None:
        """The broker; None before it is made, and on a node that is only a controller."""
        return self._broker

    @property
    def metadata(self) -> MetadataService | None:
        """The metadata service; None before the node joins the quorum."""
        return self._metadata

    @property
    def services(self) -> Sequence[ConnectionServices]:
        """The services that the connections of this node's listeners share."""
        return self._listeners.services

    @property
    def servers(self) -> Sequence[Server]:
        """The servers of all open listeners."""
        return self._listeners.servers

    # -- the quorum -----------------------------------------------------------------------------------------------

    async def _join_quorum(self) -> MetadataService:
        """Open the metadata log, serve the controller's listeners, and join the quorum as a voter or as an observer."""
        config, env = self._config, self._entrances.world(self._config.controller_listener_names[0])
        opened = [
            (each, self._listeners.open(each.name, each.host, each.port))
            for each in config.controller_listeners
        ]
        log = self._metadata_log = await env.workers.run(self._open_metadata_log)
        bootstrap = log.bootstrap()
        addresses = Addresses(env)
        metadata = self._metadata = MetadataService(
            env,
            log,
            log.snapshots,
            FileQuorumStateStore(log.directory),
            metadata_settings(
                config,
                ReplicaKey(config.node_id, self._directories.metadata_directory_id),
                self._directories.cluster_id,
                endpoints=self._controller_endpoints(),
                bootstrap=() if bootstrap is None else bootstrap.records,
            ),
            self._log,
            addresses,
            self._env.network,
        )
        if self._authorizer is not None:
            metadata.doors = ControllerDoors(self._authorizer, lambda: metadata.committed_image)
        metadata.auditor = self._auditing.auditor
        metadata.quorum.on_hung_disk = self._metadata_disk_hangs
        peers = self._peers = PeerConnections(
            env, self._tasks, client_id=f"node-{config.node_id}", log=self._log, addresses=addresses
        )
        self._channel = ControllerChannel(config.node_id, env, metadata, peers, log=self._log)
        await metadata.start(self._tasks)
        self._has_joined = True
        if opened:
            self._serve_controller(metadata, opened)
        return metadata

    def _begin_to_authorize(self, metadata: MetadataService) -> None:
        """Give the authorizer the ACLs, now that the image is current. Before that, only super users may do anything
        (KIP-801).
        """
        authorizer = self._authorizer
        if authorizer is None:
            return

        def follow(image: MetadataImage, delta: MetadataDelta) -> None:
            if delta.changed_acls:
                authorizer.apply(image.access.acl_index)

        authorizer.apply(metadata.committed_image.access.acl_index)
        metadata.subscribe(follow)

    def _open_metadata_log(self) -> MetadataLog:
        config = self._config
        return MetadataLog.open(
            self._directories.metadata_root,
            clock=self._env.clock,
            logger=self._log,
            settings=metadata_log_settings(config),
            may_vote=config.is_controller,
            agreed_clock=self._env.agreed_clock,
        )

    def _serve_controller(
        self, metadata: MetadataService, opened: Sequence[tuple[ListenerConfig, OpenListener]]
    ) -> None:
        """Serve requests of the quorum and of the controller on its listeners."""
        config = self._config
        decided = Controller(config.controller_settings()).requests
        described = DescribedController(
            config.node_id,
            config.config_layers,
            self._log_levels,
            self._env.long_work,
            lambda: metadata.committed_image,
        )
        table = build_controller_table(
            metadata,
            lambda: metadata.committed_image,
            decided,
            described,
            features=config.release.features,
            kraft_version=lambda: metadata.quorum.kraft_version,
            token_secrets=config.token_secrets,
        )
        listeners = self._listeners
        services = listeners.new_services(table, self._run_woken)
        listeners.serve(
            [
                listeners.new_server(services, listening, listener.name, self._controller_limits)
                for listener, listening in opened
            ]
        )

    def _controller_endpoints(self) -> tuple[tuple[str, str, int], ...]:
        """List the endpoints of this node's controller as (listener, host, port). If the configured port is 0, the
        system chose it.
        """
        return tuple(
            (each.listener, each.host, each.port or self._listeners.ports[each.listener])
            for each in self._config.controller_endpoints
        )

    async def _register_controller(self) -> None:
        assert self._channel is not None
        await register_controller(
            self._env,
            self._channel,
            self._config.node_id,
            self._controller_endpoints(),
            self._config.release.registered_features,
            self._log,
        )

    # -- the broker -----------------------------------------------------------------------------------------------

    async def _start_broker(self, metadata: MetadataService) -> int:
        """Open the logs, register the broker, and serve clients. Return the number of partitions."""
        clock = self._env.clock
        broker = self._broker = self._make_broker()
        broker.newest.image = metadata.committed_image
        DynamicConfig(
            broker,
            self._limits,
            self._directories.by_path,
            self._config.metadata_log_dir,
            self._notify_controller,
        ).apply()
        self._entrances.follow(broker)
        await self._directories.check_unread_topics(metadata.committed_image)
        await self._directories.load(self._tasks, metadata.committed_image)
        await broker.moves.find_futures()
        metadata.subscribe(self._apply_metadata)
        image = metadata.committed_image
        broker.hold_coordinators(True)
        broker.hold_leadership()
        self._apply_metadata(image, MetadataDelta.everything(image))
        broker.set_strays_aside()
        broker.moves.remove_unknown()
        for log_dir in self._directories.log_dirs:
            self._tasks.start_soon(log_dir.run_background)
            self._tasks.start_soon(log_dir.run_log_starts, self._env.event)
        broker.cleaner.run()
        broker.scrubber.run()
        self._tasks.start_soon(broker.timers.run)
        broker.troubles.heartbeat_now = self._notify_controller
        watch = DiskWatch(
            self._directories.log_dirs,
            clock,
            self._log,
            broker.troubles.changed,
            hung_seconds=self._config.disk_hung_seconds,
            full_seconds=self._config.disk_full_seconds,
        )
        self._tasks.start_soon(watch.run)
        servers = self._open_client_listeners(broker)
        Disconnects(broker, servers)
        self._open_metrics(metadata)
        lifecycle = self._lifecycle = self._make_lifecycle(broker)
        self._tasks.start_soon(self._run_lifecycle, lifecycle)
        await lifecycle.is_unfenced.wait()
        broker.hold_coordinators(False)
        self._tasks.start_soon(broker.assignments.run)
        self._tasks.start_soon(broker.troubles.run)
        self._listeners.serve(servers)
        partitions: int = broker.statistics()["partitions"]
        return partitions

    async def _run_lifecycle(self, lifecycle: BrokerLifecycle) -> None:
        try:
            await lifecycle.run()
        except ControllerOutOfReach as error:
            self._fail(str(error))

    def _log_config(self, topic: str) -> LogConfig:
        assert self._broker is not None
        return self._broker.log_config(topic)

    def _make_broker(self) -> Broker:
        assert self._channel is not None
        return Broker(
            broker_settings(self._config, self._directories.cluster_id),
            self._entrances.world(self._config.inter_broker_listener_name),
            self._directories.log_dirs,
            self._channel,
            self._tasks,
            self._log,
            self._log_levels,
            self._directories.unavailable,
        )

    def _apply_metadata(self, image: MetadataImage, delta: MetadataDelta) -> None:
        assert self._broker is not None
        self._broker.apply_metadata(image, delta)
        if self._lifecycle is not None:
            self._lifecycle.metadata_applied()
            self._lifecycle.brokers_changed(delta.changed_brokers)

    # -- listeners ------------------------------------------------------------------------------------------------

    def _open_client_listeners(self, broker: Broker) -> list[Server]:
        opened, table = self._listeners, build_table(broker, self._kraft_version, self._authorizer)
        services = opened.new_services(table, broker.run_woken)
        servers = []
        listeners = self._config.broker_listeners
        charged = ListenersCharging(broker, self._authorizer, self._limits)
        charged.follow(services, is_of_nodes=False)
        for listener in listeners:
            listening = opened.open(listener.name, listener.host, listener.port)
            is_peers = len(listeners) > 1 and listener.name == self._config.inter_broker_listener_name
            own = services
            if is_peers:
                # Peers have memory of their own, so incomplete requests of clients do not delay them.
                own = opened.new_services(table, broker.run_woken)
                charged.follow(own, is_of_nodes=True)
            servers.append(opened.new_server(own, listening, listener.name, self._limits, is_peers=is_peers))
            self._addresses.append(f"{listener.host or '0.0.0.0'}:{listening.port}")
        return servers

    def _newest_image(self) -> MetadataImage:
        return MetadataImage() if self._metadata is None else self._metadata.committed_image

    def _kraft_version(self) -> int:
        return 0 if self._metadata is None else self._metadata.quorum.kraft_version

    def _run_woken(self) -> None:
        """Continue the broker's requests that waited for the controller in this process and now have its answer."""
        if self._broker is not None:
            self._broker.run_woken()

    def _open_metrics(self, metadata: MetadataService) -> None:
        """Open the metrics page, if it is configured. It is available before the broker is registered."""
        settings, env = self._config.metrics, self._env
        if settings is None:
            return
        assert self._channel is not None
        broker = self._broker
        lag = None if broker is None else GroupLag(broker)
        sources = MetricsSources(
            version=odradek.__version__,
            node_id=self._config.node_id,
            cluster_id=self._directories.cluster_id,
            env=env,
            started_at=self._created_at,
            services=self._listeners.services,
            servers=self._listeners.servers,
            broker=broker,
            controller=metadata,
            channel=self._channel,
            lateness=LoopLateness(),
            costs=PageCosts(),
            auditing=self._auditing,
            entrances=self._entrances,
            counter=ImageCounter(self._config.node_id),
            lag=lag,
            kafka=KafkaMemory(),
            has_names=settings.has_names,
        )
        self._metrics = serve_metrics(
            settings,
            sources,
            env,
            self._tasks,
            self._log,
            ends=None if broker is None or lag is None else RemoteEnds(broker, lag),
            unready=lambda: unready_reason(metadata, self._lifecycle, is_starting=self._is_starting),
            guard=page_guard(env, settings, self._entrances, self._authorizer, self._auditing.auditor),
        )

    def _make_lifecycle(self, broker: Broker) -> BrokerLifecycle:
        config = self._config
        listeners = [
            RegisteredListener(
                each.name,
                each.host or LOCALHOST,
                each.port or self._listeners.ports[each.name],
                each.security_protocol_id,
            )
            for each in config.advertised_listeners
        ]
        return BrokerLifecycle(
            broker,
            listeners=listeners,
            rack=config.rack,
            previous_broker_epoch=self._directories.clean_shutdown_broker_epoch,
            settings=self._lifecycle_settings,
            log=self._log,
        )

    # -- trouble --------------------------------------------------------------------------------------------------

    def _directory_offline(self, log_dir: LogDir, reason: str) -> None:
        if self._broker is not None:
            self._broker.directory_offline(log_dir, reason)
        if self._lifecycle is not None:
            self._lifecycle.heartbeat_now()
        directories = self._directories
        if self._metadata_log is not None and log_dir.path == directories.metadata_root.path:
            self._fail(f"the directory of the metadata log, {log_dir.path}, is offline: {reason}")
        elif all(each.offline_reason is not None for each in directories.log_dirs):
            self._fail(f"all log directories are offline; the last one failed because of: {reason}")

    def _metadata_disk_hangs(self) -> None:
        """Called when the metadata log's disk hangs: ends the node as after a failed sync, without waiting for the
        hanging call.
        """
        path = self._directories.metadata_root.path
        self._fail(f"the disk of the metadata log directory {path} does not answer")
        self._process.leave_behind([path])

    def _start_stored(self, log: PartitionLog) -> None:
        if self._broker is not None:
            self._broker.start_stored(log)

    def _device_answers(self) -> None:
        if self._broker is not None:
            self._broker.device_answers()

    def _notify_controller(self) -> None:
        if self._lifecycle is not None:
            self._lifecycle.heartbeat_now()

    def _fail(self, reason: str) -> None:
        if not self._failed.is_set():
            self._failure = reason
            self._failed.set()

    async def _watch_failure(self) -> None:
        await self._failed.wait()
        raise NodeFailed(self._failure)

    # -- stop -----------------------------------------------------------------------------------------------------

    async def shut_down(self) -> None:
        """Stop the node's parts in order. It may also be called at any point of the start."""
        clock = self._env.clock
        began_at = clock.monotonic()
        lifecycle = self._lifecycle
        if lifecycle is not None:
            await lifecycle.shut_down()
        if self._broker is not None:
            self._broker.stop()
        if self._metrics is not None:
            self._metrics.close()
        self._listeners.close(but=self._config.controller_listener_names)
        if self._metadata is not None and self._has_joined:
            await self._metadata.stop(began_at + OTHERS_SECONDS_MAX)
        self._listeners.close()
        if self._peers is not None:
            self._peers.close()
        if self._metadata_log is not None:
            await self._close_metadata_log(self._metadata_log)
        broker_epoch = -1 if lifecycle is None else lifecycle.broker_epoch
        left_behind = await self._directories.close(broker_epoch, began_at + OTHERS_SECONDS_MAX)
        await self._auditing.close()
        if left_behind:
            self._directories.unlock(left_behind)
            self._process.leave_behind(left_behind)
        self._log.info("node.stopped", stop_ms=round((clock.monotonic() - began_at) * 1000))

    async def _close_metadata_log(self, log: MetadataLog) -> None:
        """Close the metadata log. If its disk fails, continue, so that the logs of partitions are still closed.

        No data is lost, because everything that this node acknowledged to the quorum was synced before. The next
        start recovers the log.
        """
        try:
            await self._env.workers.run(log.close)
        except DiskError as error:
            self._log.warning("node.metadata_log_not_closed", reason=str(error))
