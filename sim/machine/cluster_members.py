"""A simulated cluster: its shape drawn from a seed, its nodes' configuration and formatting, replaced disks,
the comparison of metadata. PORTED.

A cluster has `nodes` brokers. With `controllers` = 0 the first `voters` of them are also controllers (0: all of them).
Otherwise `controllers` separate machines form the quorum, with ids from 101 on. Some settings are drawn from the seed:
either Kafka's defaults, or shorter times with which a run has more elections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import attrs

from odradek.client.core.client_config import ClientConfig
from odradek.client.errors import ClientError
from odradek.client.shells.aio import AsyncClient
from odradek.metadata_quorum.replica.checkpoint_files import parse_snapshot_name
from odradek.metadata_quorum.replica.storage_format import (
    METADATA_LOG_DIRECTORY,
    StorageFormat,
    bootstrap_features,
    format_storage,
    initial_voters,
)
from odradek.node.configuration.node_config import NodeConfig
from odradek.wire.errors import KafkaError
from odradek.wire.messages.metadata import MetadataRequest, MetadataResponse
from odradek.wire.topic_partition import TopicPartition
from odradek.wire.uuid_text import uuid_to_text
from sim.machine.guards import SASL, SASL_PORT, guarded_settings
from sim.machine.members import Member
from sim.machine.releases import OLDER_LEVELS, OLDER_RELEASE
from sim.machine.world import World
from sim.replicas import StoredBatch, read_log

BROKER_PORT = 9092
CONTROLLER_PORT = 9093
FIRST_CONTROLLER_ID = 101
CLUSTER_ID = "H5nlA7uKR0-zDRxvMJS5iw"
DATA = ("/data", "/more", "/third")
VIEW_SECONDS = 2.0
"""How many seconds may pass until a broker answers with its metadata."""
LOOK_AGAIN_SECONDS = 0.25
OBSERVER_CONFIG = ClientConfig(client_id="observer", request_timeout=VIEW_SECONDS, fail_fast=False)


@attrs.frozen
class Shape:
    """The number of nodes of each kind, and their settings. `log_dirs` is the number of log directories of each
    broker.
    """

    nodes: int = 3
    controllers: int = 0
    log_dirs: int = 1
    dynamic_voters: bool = False
    settings: Mapping[str, str] = attrs.Factory(dict)
    older: int = 0
    """How many nodes start with the previous release (`sim.storm.upgrade`)."""
    segment_bytes: int = 0
    """`internal.segment.bytes` of the topics; 0 leaves Kafka's default, which is larger than the data of a run."""
    replicas: int = 3
    """The replication factor of all topics."""
    voters: int = 0
    """How many brokers are voters if there are no separate controllers; 0 means all of them."""
    racks: int = 0
    """The number of racks, to which brokers are assigned in rotation; 0 gives each broker its own rack."""
    broker_log_dirs: tuple[int, ...] = ()
    """The number of log directories of each broker, in order. If empty, all have `log_dirs`."""
    guarded: int = 0
    """Who must log in: `CLIENTS_LOG_IN` or `NODES_LOG_IN` (`sim.machine.guards`). With 0 the cluster has neither
    logins nor ACLs.
    """
    session_ms: int = 0
    """How long a login lasts, in milliseconds; 0: no limit."""

    @classmethod
    def draw(cls, random: Random, nodes: int = 3, controllers: int | None = None) -> Shape:
        """Draw a shape. If `controllers` is None, draw the number of controllers, too."""
        drawn = random.choice((0, 0, 3))
        settings = dict(SETTINGS)
        if random.random() < 0.5:
            settings |= QUICK_SETTINGS
        if random.random() < 0.5:
            settings["replica.selector.class"] = RACK_AWARE_SELECTOR
        if random.random() < 0.5:
            settings["metadata.log.max.record.bytes.between.snapshots"] = random.choice(("500", "5000"))
        return cls(
            nodes,
            drawn if controllers is None else controllers,
            random.choice((1, 1, 2)),
            random.random() < 0.5,
            settings,
        )

    def widened(self, random: Random) -> Shape:
        """Return a copy. In half of all runs it has more brokers, or other numbers of replicas, voters, racks and
        directories.
        """
        nodes = random.choices(tuple(NODES), tuple(NODES.values()))[0]
        replicas = random.choices(*REPLICAS_OF[nodes])[0]
        in_sync_min = random.choice(IN_SYNC_MIN_OF[replicas])
        controllers = random.choice(CONTROLLERS) if self.controllers else 0
        return attrs.evolve(
            self.replicated(replicas, in_sync_min),
            nodes=nodes,
            controllers=controllers,
            voters=0 if controllers or random.random() < 0.6 else random.randint(1, min(nodes, VOTERS_MAX)),
            racks=random.choice((0, 0, 2, 3)),
            broker_log_dirs=tuple(random.choice((1, 1, 2, 3)) for _ in range(nodes))
            if random.random() < 0.3
            else (),
        )

    def replicated(self, replicas: int, in_sync_min: int) -> Shape:
        """Return a copy with this replication factor, and this `min.insync.replicas`."""
        factors = (
            "default.replication.factor",
            "offsets.topic.replication.factor",
            "transaction.state.log.replication.factor",
        )
        in_sync = dict.fromkeys(("min.insync.replicas", "transaction.state.log.min.isr"), str(in_sync_min))
        settings = {**self.settings, **dict.fromkeys(factors, str(replicas)), **in_sync}
        return attrs.evolve(self, replicas=replicas, settings=settings)

    def narrowed(self) -> Shape:
        """Return a copy with three brokers, each of which has a replica of every partition."""
        plain = Shape()
        factors = (
            "default.replication.factor",
            "offsets.topic.replication.factor",
            "transaction.state.log.replication.factor",
            "min.insync.replicas",
            "transaction.state.log.min.isr",
        )
        settings = {**self.settings, **{key: SETTINGS[key] for key in factors if key in self.settings}}
        return attrs.evolve(
            self, nodes=plain.nodes, replicas=plain.replicas, settings=settings, voters=0, broker_log_dirs=()
        )

    @property
    def in_sync_min(self) -> int:
        """`min.insync.replicas` of the run's topics."""
        return int(self.settings.get("min.insync.replicas", 2))

    def with_upkeep(self, random: Random) -> Shape:
        """Return a copy. In half of all runs it has small segments, and background work that is due within seconds."""
        if random.random() < 0.5:
            return self
        drawn = {key: random.choice(values) for key, values in UPKEEP_SETTINGS.items()}
        settings = {**self.settings, **drawn}
        return attrs.evolve(self, settings=settings, segment_bytes=random.choice(SEGMENT_BYTES))

    def without_upkeep(self) -> Shape:
        """Return a copy with Kafka's defaults for the settings that `with_upkeep` and `with_small_intervals` draw."""
        settings = {
            key: text for key, text in self.settings.items() if key not in (*UPKEEP_SETTINGS, *SMALL_SETTINGS)
        }
        return attrs.evolve(self, settings=settings, segment_bytes=0)

    def with_small_intervals(self, random: Random) -> Shape:
        """Return a copy. In half of all runs it has small sizes, and intervals of seconds instead of minutes."""
        if random.random() < 0.5:
            return self
        drawn = {key: random.choice(values) for key, values in SMALL_SETTINGS.items()}
        return attrs.evolve(self, settings={**self.settings, **drawn})

    def aged(self, random: Random) -> Shape:
        """Return a copy for a run of hours: three brokers with long timeouts, and background work that is due within
        minutes.
        """
        drawn = {key: random.choice(values) for key, values in AGED_SETTINGS.items()}
        narrow = self.narrowed()
        settings = {**narrow.settings, **drawn}
        return attrs.evolve(
            narrow, controllers=0, settings=settings, segment_bytes=random.choice(SEGMENT_BYTES), older=0
        )

    def synced(self) -> Shape:
        """Return a copy whose brokers sync all records before they acknowledge them."""
        return attrs.evolve(self, settings={**self.settings, FLUSH_MESSAGES: "1"})

    def unsynced(self) -> Shape:
        """Return a copy whose brokers sync by Kafka's defaults."""
        settings = {key: text for key, text in self.settings.items() if key != FLUSH_MESSAGES}
        return attrs.evolve(self, settings=settings)

    @property
    def syncs_all(self) -> bool:
        """True if all acknowledged records are synced on all in-sync replicas (docs/delivery.md)."""
        return self.settings.get(FLUSH_MESSAGES) == "1"

    @property
    def topic_configs(self) -> Mapping[str, str]:
        """The configuration with which the run's topics are created."""
        return {"internal.segment.bytes": str(self.segment_bytes)} if self.segment_bytes else {}


FLUSH_MESSAGES = "log.flush.interval.messages"
VOTERS_MAX = 5
CONTROLLERS = (1, 2, 3, 3, 3, 4, 5)
NODES = {3: 0.52, 4: 0.22, 5: 0.16, 6: 0.1}
"""The share of runs that have each number of brokers."""
REPLICAS_OF = {
    3: ((1, 2, 3), (0.05, 0.1, 0.85)),
    4: ((1, 2, 3, 4), (0.05, 0.15, 0.6, 0.2)),
    5: ((2, 3, 4, 5), (0.1, 0.6, 0.1, 0.2)),
    6: ((2, 3, 4, 5), (0.1, 0.7, 0.1, 0.1)),
}
"""For each number of brokers, the possible replication factors, and the shares of runs that have them."""
IN_SYNC_MIN_OF = {1: (1,), 2: (1, 2), 3: (2,), 4: (2, 3), 5: (2, 3)}
"""For each replication factor, the values of `min.insync.replicas` to choose from."""
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "2",
    # Allow short sessions of group members, so that the sessions of crashed members end soon.
    "group.min.session.timeout.ms": "500",
    "auto.create.topics.enable": "false",
    # Remove old metadata records at once, so that a follower may have to fetch a snapshot from the leader.
    "metadata.max.retention.bytes": "0",
    # Set these timeouts to infinity: after such a timeout the node would end, and nobody in a simulation would restart
    # it.
    "initial.broker.registration.timeout.ms": "2147483647",
    "log.dir.failure.timeout.ms": "2147483647",
}
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
QUICK_SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "2000",
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "600",
    "controller.quorum.election.backoff.max.ms": "200",
}
UPKEEP_SETTINGS = {
    "log.retention.check.interval.ms": ("1000", "3000"),
    "log.segment.delete.delay.ms": ("0", "1000", "60000"),
    "log.roll.ms": ("1000", "5000", "604800000"),
    "log.index.interval.bytes": ("0", "4096"),
    "log.flush.offset.checkpoint.interval.ms": ("2000", "60000"),
    "log.cleaner.backoff.ms": ("1000", "15000"),
    "odradek.flush.max.unsynced.bytes": ("2000", "1073741824"),
    "log.cleaner.min.cleanable.ratio": ("0.01", "0.5"),
}
"""For each key, the values from which `Shape.with_upkeep` draws. With Kafka's defaults of minutes nothing would be due
in a run of seconds.
"""
SMALL_SETTINGS = {
    "offsets.topic.segment.bytes": ("1048576", "104857600"),
    "metadata.log.max.snapshot.interval.ms": ("2000", "3600000"),
    "metadata.log.segment.bytes": ("8388608", "1073741824"),
    "producer.id.expiration.check.interval.ms": ("1000", "600000"),
    "offsets.retention.check.interval.ms": ("1000", "600000"),
    "log.flush.start.offset.checkpoint.interval.ms": ("2000", "60000"),
}
"""For each key, the values from which `Shape.with_small_intervals` draws."""
AGED_SETTINGS = {
    "replica.fetch.wait.max.ms": ("10000",),
    "replica.lag.time.max.ms": ("30000",),
    "broker.heartbeat.interval.ms": ("3000",),
    "broker.session.timeout.ms": ("18000",),
    "controller.quorum.fetch.timeout.ms": ("20000",),
    "controller.quorum.election.timeout.ms": ("5000",),
    "log.roll.ms": ("60000", "600000", "604800000"),
    "log.retention.check.interval.ms": ("30000", "300000"),
    "log.segment.delete.delay.ms": ("0", "60000"),
    "log.index.interval.bytes": ("0", "4096"),
    "log.flush.offset.checkpoint.interval.ms": ("60000",),
    "metadata.log.max.snapshot.interval.ms": ("60000", "600000"),
    "producer.id.expiration.ms": ("120000", "86400000"),
    "producer.id.expiration.check.interval.ms": ("30000",),
    "offsets.topic.segment.bytes": ("1048576", "104857600"),
    "offsets.retention.minutes": ("20", "10080"),
    "offsets.retention.check.interval.ms": ("60000",),
}
"""For each key, the values from which `Shape.aged` draws. Even the shortest expiration of producer ids is longer than
the time for which a producer repeats a batch.
"""
LATER_AGED_SETTINGS = {
    "transactional.id.expiration.ms": ("300000", "604800000"),
    "transaction.remove.expired.transaction.cleanup.interval.ms": ("60000",),
    "transaction.two.phase.commit.enable": ("true", "true", "false"),
    "group.min.session.timeout.ms": ("1000",),
    "log.cleaner.backoff.ms": ("15000", "60000"),
}
"""More settings for runs of hours. They are drawn with another random generator."""
OFFSETS_STAY_MINUTES = "10080"
"""Kafka's default of `offsets.retention.minutes`, one week."""
SEGMENT_BYTES = (2_000, 10_000, 50_000)
TUNED = (
    *QUICK_SETTINGS,
    *UPKEEP_SETTINGS,
    *SMALL_SETTINGS,
    "replica.selector.class",
    "metadata.log.max.record.bytes.between.snapshots",
)
"""The keys that are not in the older configuration file of a node."""


@attrs.frozen
class PartitionView:
    """A broker's metadata of one partition. In a whole cluster all brokers have the same metadata."""

    name: str
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    """Broker ids in ascending order."""


class Cluster:
    """The machines of a simulated cluster. The constructor starts none of them."""

    def __init__(self, world: World, shape: Shape) -> None:
        self.world = world
        self.shape = shape
        broker_ids = range(1, 1 + shape.nodes)
        controller_ids = range(FIRST_CONTROLLER_ID, FIRST_CONTROLLER_ID + shape.controllers)
        combined = min(shape.voters or shape.nodes, VOTERS_MAX)
        self._voters = {
            node_id: f"controller-{node_id - FIRST_CONTROLLER_ID + 1}" for node_id in controller_ids
        } or {node_id: f"node-{node_id}" for node_id in broker_ids[:combined]}
        self.brokers = [self._member(node_id, f"node-{node_id}") for node_id in broker_ids]
        self.controllers = (
            [self._member(node_id, name) for node_id, name in self._voters.items()]
            if shape.controllers
            else self.brokers[:combined]
        )
        self.members: list[Member] = (
            [*self.controllers, *self.brokers] if shape.controllers else list(self.brokers)
        )
        older = min(shape.older, len(self.members))
        for member in Random(f"{world.seed}/older").sample(self.members, older):
            member.release = member.speaks = OLDER_RELEASE
        self.bootstrap: Sequence[tuple[str, int]] = [(member.name, BROKER_PORT) for member in self.brokers]
        self.topics: list[str] = []
        """Topics that every broker must know before the cluster counts as whole."""
        self.recovered: dict[TopicPartition, tuple[int, ...]] = {}
        """The replicas, in ascending order, that an operator has assigned to partitions without a leader."""
        self.replica_sets: frozenset[frozenset[str]] = frozenset()
        """For each partition, the names of its brokers when the cluster was last whole."""
        self._observer: AsyncClient | None = None

    def _member(self, node_id: int, name: str) -> Member:
        is_voter = self._voters.get(node_id) == name
        is_broker = node_id < FIRST_CONTROLLER_ID
        listeners = []
        settings = dict(self.shape.settings)
        if is_broker:
            listeners.append(f"PLAINTEXT://{name}:{BROKER_PORT}")
            if self.shape.guarded:
                listeners.append(f"{SASL}://{name}:{SASL_PORT}")
            racks = self.shape.racks or self.shape.nodes
            settings["broker.rack"] = f"rack-{(node_id - 1) % racks + 1}"
        if is_voter:
            listeners.append(f"CONTROLLER://{name}:{CONTROLLER_PORT}")
        roles = [role for role, has in (("broker", is_broker), ("controller", is_voter)) if has]
        properties = {
            "process.roles": ",".join(roles),
            "node.id": str(node_id),
            "listeners": ",".join(listeners),
            "controller.listener.names": "CONTROLLER",
            "log.dirs": ",".join(DATA[: self._log_dirs_of(node_id)]),
            **settings,
        }
        if self.shape.guarded:
            properties |= guarded_settings(self.shape.guarded, self.shape.session_ms, listeners)
        if self.shape.dynamic_voters:
            servers = ",".join(f"{host}:{CONTROLLER_PORT}" for host in self._voters.values())
            properties["controller.quorum.bootstrap.servers"] = servers
        else:
            voters = ",".join(f"{voter}@{host}:{CONTROLLER_PORT}" for voter, host in self._voters.items())
            properties["controller.quorum.voters"] = voters
        older = {key: text for key, text in properties.items() if key not in TUNED}
        return Member(
            self.world, name, NodeConfig.from_properties(properties), NodeConfig.from_properties(older)
        )

    def _log_dirs_of(self, node_id: int) -> int:
        counts = self.shape.broker_log_dirs
        return counts[node_id - 1] if node_id <= len(counts) else self.shape.log_dirs

    @property
    def _first_levels(self) -> Mapping[str, int]:
        return bootstrap_features(OLDER_LEVELS if self.shape.older else {})

    def format(self) -> None:
        """Format all disks, as an operator does before the first start, and sync them."""
        world = self.world
        ids = {member.name: world.node_env(member.name).new_uuid() for member in self.controllers}
        voters = None
        if self.shape.dynamic_voters:
            texts = [
                f"{member.config.node_id}@{member.name}:{CONTROLLER_PORT}:{uuid_to_text(ids[member.name])}"
                for member in self.controllers
            ]
            voters = initial_voters(",".join(texts), "CONTROLLER")
        for member in self.members:
            env = world.node_env(member.name)
            paths = dict.fromkeys((*member.config.log_dirs, member.config.metadata_log_dir))
            directories = [env.open_dir(path, create=True) for path in paths]
            format_storage(
                directories,
                directories[list(paths).index(member.config.metadata_log_dir)],
                StorageFormat(
                    cluster_id=CLUSTER_ID,
                    node_id=member.config.node_id,
                    directory_ids=[env.new_uuid() for _ in directories],
                    voters=voters if member in self.controllers else None,
                    timestamp_ms=env.clock.wall_ms(),
                    features=self._first_levels,
                ),
            )
            world.crash(member.name, "random")  # The format must have synced everything that it wrote.

    def replace_disks(self, member: Member, paths: Sequence[str]) -> None:
        """Replace disks of a stopped node by empty disks, and format them for a node that joins an existing cluster.

        If the machine keeps some of its disks, it also keeps its power: the disks are exchanged while it runs, as in
        a JBOD host. Only a replacement of all disks is a power loss, during which another in-sync broker must stay
        up.
        """
        world = self.world
        disk = world.machine(member.name).disk
        for path in paths:
            disk.replace(path)
        env = world.node_env(member.name)
        directories = [env.open_dir(path) for path in member.config.log_dirs]
        format_storage(
            directories,
            directories[0],
            StorageFormat(
                cluster_id=CLUSTER_ID,
                node_id=member.config.node_id,
                directory_ids=[env.new_uuid() for _ in directories],
                timestamp_ms=env.clock.wall_ms(),
                features=self._first_levels,
            ),
            ignore_formatted=True,
        )
        world.crash(member.name, "random" if set(paths) >= set(member.config.log_dirs) else "all")

    # -- the cluster's metadata

    @property
    def observer(self) -> AsyncClient:
        """A client on a machine that no fault hits."""
        if self._observer is None:
            self._observer = AsyncClient(
                self.world.node_env("observer"), self.world.tasks, self.bootstrap, OBSERVER_CONFIG
            )
        return self._observer

    async def trouble(self) -> str | None:
        """Describe why the cluster is not whole. Return None if it is whole: all brokers report the same metadata,
        with all replicas in sync.
        """
        views: list[list[PartitionView]] = []
        for member in self.brokers:
            if not member.serves():
                return f"{member.name} is not up"
            view = await self._view(member)
            if isinstance(view, str):
                return f"{member.name}: {view}"
            views.append(view)
        for member, view in zip(self.brokers, views, strict=True):
            if view != views[0]:
                return f"{member.name} knows other metadata than {self.brokers[0].name}"
        names = {member.config.node_id: member.name for member in self.brokers}
        self.replica_sets = frozenset(frozenset(names[each] for each in view.replicas) for view in views[0])
        return None

    async def _view(self, member: Member) -> str | list[PartitionView]:
        """Return the metadata of one broker in a form that can be compared, or a text that describes its problem."""
        message = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        try:
            answer: MetadataResponse = await self.observer.request(
                message, node=member.config.node_id, timeout_ms=int(VIEW_SECONDS * 1000)
            )
        except (KafkaError, ClientError) as error:
            return str(error)
        if len(answer.brokers) < len(self.brokers):
            return f"{len(answer.brokers)} of {len(self.brokers)} brokers are unfenced"
        for name in self.topics:
            if all(topic.name != name for topic in answer.topics):
                return f"{name} is not known yet"
        view: list[PartitionView] = []
        for topic in sorted(answer.topics, key=lambda topic: topic.name or ""):
            for each in sorted(topic.partitions, key=lambda each: each.partition_index):
                name = f"{topic.name}-{each.partition_index}"
                if each.leader_id < 0:
                    return f"{name} has no leader"
                if sorted(each.isr_nodes) != sorted(each.replica_nodes):
                    return f"{name} of {each.replica_nodes} has in sync only {each.isr_nodes}"
                view.append(
                    PartitionView(name, each.leader_id, each.leader_epoch, tuple(sorted(each.replica_nodes)))
                )
        return view

    async def wait_until_whole(self, seconds: float) -> str | None:
        """Wait until the cluster is whole, at most `seconds`. Return None, or a description of the remaining problem."""
        deadline = self.world.now + seconds
        while True:
            wrong = await self.trouble()
            if wrong is None or self.world.now >= deadline:
                return wrong
            await self.world.sleep(LOOK_AGAIN_SECONDS)

    # --- the contents of the disks

    def metadata_log(self, member: Member) -> list[StoredBatch]:
        """Read a node's metadata log from its disk."""
        disk = self.world.machine(member.name).disk
        return read_log(disk.peek(f"{member.config.metadata_log_dir}/{METADATA_LOG_DIRECTORY}"))

    def snapshot_end(self, member: Member) -> int:
        """Return the end offset of the newest metadata snapshot on a node's disk; 0 if there is none."""
        disk = self.world.machine(member.name).disk
        files = disk.peek(f"{member.config.metadata_log_dir}/{METADATA_LOG_DIRECTORY}")
        ends = [parse_snapshot_name(name) for name in files]
        return max((end[0] for end in ends if end is not None), default=0)

    def metadata_logs(self) -> dict[str, list[StoredBatch]]:
        """Read the metadata log of each node from its disk, by machine."""
        return {member.name: self.metadata_log(member) for member in self.members}

    def replica_logs(self, topic: str, partition: int) -> dict[str, list[StoredBatch]]:
        """Read each replica's log from its disk, by machine."""
        found = {}
        for member in self.brokers:
            disk = self.world.machine(member.name).disk
            for path in member.config.log_dirs:
                if files := disk.peek(f"{path}/{topic}-{partition}"):
                    found[member.name] = read_log(files)
        return found
