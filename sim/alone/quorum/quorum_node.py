"""A simulated replica of the metadata quorum: its disk, and its tasks while its process runs. PORTED.

All parts are the product's: `MetadataService` with its driver, core, publisher, snapshots and controller, and the
metadata log on a simulated disk. This module provides their environment (`odradek.serving.node_env.NodeEnv`).
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, Any

import attrs

from odradek.data_plane.metadata_log import MetadataLog, MetadataLogSettings, MetadataRetention
from odradek.env.agreed_clock import AgreedClock
from odradek.env.ports import Dir, DiskError
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.raft.core_state import RaftConfig
from odradek.metadata_quorum.raft.messages import Fetch, Vote
from odradek.metadata_quorum.raft.voters import ReplicaKey, Voter, VoterSet
from odradek.metadata_quorum.replica.driver_protocol import QuorumSettings
from odradek.metadata_quorum.replica.quorum_state import FileQuorumStateStore
from odradek.metadata_quorum.replica.snapshots import SnapshotSettings
from odradek.metadata_quorum.replica.storage_format import StorageFormat, format_storage
from odradek.metadata_quorum.service import MetadataService, MetadataSettings
from odradek.serving.long_work import LongWork
from odradek.wire.structure import Message
from sim.alone.quorum.quorum_network import Channels, Network
from sim.alone.quorum.quorum_platter import QuorumPlatter
from sim.alone.quorum.stepping import START_MS, Process, StepClock, StepEvent, Steps, StepWorkers
from sim.history import SafetyViolation
from sim.machine.disk import Keep, SimDisk
from sim.machine.disk_files import PowerCut

if TYPE_CHECKING:
    from odradek.serving.node_env import NodeEnv

__all__ = ["CLUSTER_ID", "LISTENER", "PORT", "Node", "NodePlan", "host_of", "key_of", "voter_of"]

CLUSTER_ID = "H5nlA7uKR0-zDRxvMJS5iw"
LISTENER = "CONTROLLER"
PORT = 9093
ROOT = "data"
RAFT = RaftConfig(
    election_timeout_seconds=0.5,
    election_backoff_seconds_max=0.2,
    fetch_timeout_seconds=1.0,
    retry_backoff_seconds=0.02,
    fetch_wait_seconds_max=0.25,
    request_timeout_seconds=1.0,
)


@attrs.frozen
class NodePlan:
    """Settings that all replicas of a schedule share."""

    segment_bytes: int = 1 << 20
    snapshot_bytes: int = 1 << 20
    retention: MetadataRetention | None = None
    disk_seconds: tuple[float, float] = (0.0, 0.005)
    fetch_bytes_max: int = 1 << 20
    points: frozenset[str] = frozenset()
    """The points of `Env.buggify` that may fire."""
    fire_probability: float = 0.1


class _Quiet:
    """Logger that keeps only the event names of warnings and errors."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def info(self, event: str, /, **fields: Any) -> None:
        """Drop the line."""

    debug = info

    def warning(self, event: str, /, **fields: Any) -> None:
        """Keep the event's name."""
        self._notes.append(event)

    error = exception = warning


class _Still:
    """`odradek.env.ports.Meter` that always measures zero: schedules have no quotas."""

    def cpu_seconds(self) -> float:
        return 0.0

    thread_cpu_seconds = cpu_seconds

    def turn_cpu_seconds(self, seconds: float) -> float:
        return 0.0


class _Env:
    """`odradek.serving.node_env.NodeEnv` for one process of the replica."""

    def __init__(self, node: Node, steps: Steps, random: Random) -> None:
        self._node = node
        self._steps = steps
        self.random = random
        self.clock = StepClock(steps)
        self.workers = StepWorkers(steps, random, node.disk_seconds)
        self.meter = _Still()
        self.long_work = LongWork(self.clock, self.event, self.workers, self.meter)
        self.agreed_clock = AgreedClock(self.clock)
        self.provokes = bool(node.plan.points)

    @property
    def network(self) -> Any:
        raise AssertionError("a simulated replica sends its messages through `Channels`, not `network`")

    def new_workers(self, threads_max: int | None = None) -> StepWorkers:
        return self.workers

    def new_companion(self, factory: str, *args: Any) -> Any:
        raise AssertionError("a simulated replica has no companions: only log compaction needs them")

    def open_dir(self, path: str, *, create: bool = False) -> Dir:
        return self._node.disk.open_dir(path, create)

    def is_blank_disk(self, path: str) -> bool:
        return self._node.disk.is_blank(path)

    def event(self) -> StepEvent:
        return StepEvent(self._steps)

    def new_uuid(self) -> bytes:
        return b"\x01" + self.random.randbytes(15)

    def buggify(self, point: str) -> bool:
        plan = self._node.plan
        return point in plan.points and self.random.random() < plan.fire_probability


class _Tasks(Process):
    """The tasks of one process of the replica. When the core decides to send a Fetch or Vote, the request is passed
    to `node.on_send`.
    """

    node: Node

    def start_soon(
        self, function: Callable[..., Awaitable[Any]], *args: Any, name: str | None = None
    ) -> None:
        for each in args:
            if isinstance(each, (Fetch, Vote)):
                self.node.on_send(self.node, each)
        super().start_soon(function, *args, name=name)


class Node:
    """A replica. `service` is set while its process runs, after the log was opened."""

    def __init__(self, node_id: int, steps: Steps, network: Network, random: Random, plan: NodePlan) -> None:
        self.node_id = node_id
        self.name = self.host = host_of(node_id)
        """The machine's name, and the host name for connections to it. The host name may change while the process is
        down.
        """
        self.bootstrap: tuple[str, ...] | None = None
        """The host names of the replica's bootstrap servers from its next start on; None for all hosts."""
        self.notes: list[str] = []
        """Event names of the warnings and errors that the replica has logged."""
        self.plan = plan
        self.steps = steps
        self._random = random
        self._network = network
        self.disk = SimDisk(Random(f"{random.random()}"), wall_ms=lambda: START_MS + int(steps.now * 1000))
        self.platter = QuorumPlatter(self.disk, f"{ROOT}/__cluster_metadata-0")
        self.life = 0
        self.process: _Tasks | None = None
        self.service: MetadataService | None = None
        self.log: MetadataLog | None = None
        self.has_power = True
        self.hangs_until = 0.0
        """The virtual time in seconds before which no disk call finishes."""
        self.expects_failure = False
        """True if a disk call has failed or will fail, so that a `DiskError` may end the process."""
        self.on_send: Callable[[Node, Fetch | Vote], None] = lambda node, request: None
        self.on_death: Callable[[Node], None] = lambda node: None
        self.on_open: Callable[[Node], None] = lambda node: None
        self.on_call: Callable[[Node], None] = lambda node: None

    @property
    def key(self) -> ReplicaKey:
        return key_of(self.node_id)

    @property
    def lives(self) -> bool:
        return self.process is not None

    @property
    def is_listening(self) -> bool:
        return self.service is not None and self.service.quorum.is_open

    def disk_seconds(self) -> float:
        """Draw how long the next disk call takes, in seconds."""
        seconds = self._random.uniform(*self.plan.disk_seconds)
        return max(seconds, self.hangs_until - self.steps.now)

    def format(self, voters: VoterSet | None) -> None:
        """Format the data directory as an operator would. `voters` is given if the node is one of the first voters."""
        root = self.disk.open_dir(ROOT, create=True)
        directory_id = key_of(self.node_id).directory_id
        format_storage(
            [root],
            root,
            StorageFormat(
                cluster_id=CLUSTER_ID,
                node_id=self.node_id,
                directory_ids=[directory_id],
                voters=voters,
                timestamp_ms=START_MS,
            ),
        )

    # -- process runs ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a process on the present contents of the disk."""
        assert self.process is None
        self.life += 1
        self.has_power = True
        self.expects_failure = False
        process = self.process = _Tasks(self.steps)
        process.node = self
        process.on_failure = self._failed
        process.on_power_cut = lambda: self.die("random")
        process.start_soon(self._run, process)

    async def _run(self, process: Process) -> None:
        env: NodeEnv = _Env(self, self.steps, Random(f"{self._random.random()}"))
        logger = _Quiet(self.notes)
        plan = self.plan
        root = env.open_dir(ROOT)
        settings = MetadataLogSettings(plan.segment_bytes, plan.retention)
        log = self.log = await env.workers.run(
            lambda: MetadataLog.open(root, clock=env.clock, logger=logger, settings=settings, may_vote=True)
        )
        bootstrap = log.bootstrap()
        service = MetadataService(
            env,
            log,
            log.snapshots,
            FileQuorumStateStore(log.directory),
            MetadataSettings(
                QuorumSettings(
                    self.key,
                    CLUSTER_ID,
                    attrs.evolve(RAFT, fetch_bytes_max=plan.fetch_bytes_max),
                    bootstrap_servers=tuple((host, PORT) for host in self.bootstrap or self._network.nodes),
                    endpoints=((LISTENER, self.host, PORT),),
                ),
                ControllerSettings(suspicion_ms=0),
                SnapshotSettings(plan.snapshot_bytes, 0),
                () if bootstrap is None else bootstrap.records,
            ),
            logger,
        )
        self.service = service
        self.on_open(self)
        await service.join(process, Channels(self._network, self))

    def _failed(self, error: Exception) -> None:
        """Called when a task raises: end the process. Fail the run unless it is a `DiskError` that the schedule
        expects.
        """
        if not self.expects_failure or not isinstance(error, DiskError):
            raise SafetyViolation(f"{self.node_id} ends with {type(error).__name__}: {error}") from error
        self.die(self._random.choice(("random", "synced")))

    def die(self, keep: Keep) -> None:
        """End the process. With `keep` "all" the disk keeps all bytes; otherwise the machine loses power and perhaps
        unsynced bytes.
        """
        process, self.process = self.process, None
        assert process is not None
        power = keep != "all"
        self.has_power = not power
        self.disk.forget_faults()
        self.disk.capacity_bytes = None
        self.disk.crash(keep)
        self.platter.forget()
        process.kill()
        self.service = self.log = None
        self._network.node_died(self, power=power)
        self.on_death(self)

    def fail_sync(self) -> None:
        """Let the next sync of a file fail; the process may end with that error."""
        self.expects_failure = True
        self.disk.fail_next(errno.EIO, operation="sync", path_part=".")

    def receive(self, message: Message, version: int, respond: Callable[[Message], None]) -> None:
        """Pass a request to the product's quorum; `respond` is called with its answer."""
        assert self.service is not None
        self.call(self.service.quorum.receive, message, version, respond)

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function of the process from outside its tasks. A power cut within the call ends the process."""
        try:
            function(*args)
        except PowerCut:
            self.die("random")
        self.on_call(self)


def host_of(node_id: int) -> str:
    """Return the host name of a node."""
    return f"c{node_id}"


def key_of(node_id: int) -> ReplicaKey:
    """Return the replica key (node id, directory id) of a node."""
    return ReplicaKey(node_id, b"directory %06d" % node_id)


def voter_of(node_id: int) -> Voter:
    """Return a node's entry for a voter set."""
    return Voter(key_of(node_id), ((LISTENER, host_of(node_id), PORT),))
