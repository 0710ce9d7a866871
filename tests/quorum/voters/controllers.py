"""Controllers without brokers in the simulator: each has a disk, a listener and a `MetadataService`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
import trio

from odradek.data_plane.metadata_log import MetadataLog, MetadataLogSettings
from odradek.env.ports import Env
from odradek.metadata_quorum.controller.controller import Controller
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.controller_table import build_controller_table
from odradek.metadata_quorum.features import SUPPORTED_FEATURES
from odradek.metadata_quorum.raft.core_state import RaftConfig
from odradek.metadata_quorum.raft.voters import ReplicaKey, Voter, VoterSet
from odradek.metadata_quorum.replica.driver_protocol import NO_VOTERS, QuorumSettings
from odradek.metadata_quorum.replica.metadata_batches import MetadataBatch, read_batches
from odradek.metadata_quorum.replica.peers import PeerConnections
from odradek.metadata_quorum.replica.quorum_state import FileQuorumStateStore
from odradek.metadata_quorum.replica.snapshots import SnapshotSettings
from odradek.metadata_quorum.replica.storage_format import find_meta_properties
from odradek.metadata_quorum.service import MetadataService, MetadataSettings
from odradek.node.connections.buffers import ReceiveBuffers
from odradek.wire.messages.add_raft_voter import AddRaftVoterRequest
from odradek.wire.messages.add_raft_voter import Listener as AddListener
from odradek.wire.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from odradek.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from sim.machine.sim_env import SimEnv
from sim.machine.weather import Weather
from sim.machine.world import Running, World
from testkit.by_hand import KeptLog
from testkit.virtual import format_directory, serve_table
from tests.quorum.voters.node_parts import CLUSTER_ID, PATH

PORT = 9093
LISTENER = "CONTROLLER"


Script = Callable[[World, "Controllers"], Awaitable[None]]


@attrs.define(eq=False)
class Member:
    """A running node: its parts from one start to the next."""

    node_id: int
    env: SimEnv
    service: MetadataService
    log: MetadataLog
    journal: KeptLog
    running: Running | None = None
    stop: trio.Event = attrs.field(factory=trio.Event)

    @property
    def is_active(self) -> bool:
        return self.service.is_active


def register(broker_id: int) -> BrokerRegistrationRequest:
    """Make a request for a decision with a visible result: the registration of a broker that sends no heartbeats."""
    return BrokerRegistrationRequest(
        broker_id,
        CLUSTER_ID,
        b"incarnation %04d" % broker_id,
        [Listener("PLAINTEXT", f"b{broker_id}", 9092, 0)],
        [Feature(name, low, high) for name, (low, high) in sorted(SUPPORTED_FEATURES.items())],
        None,
        False,
        [b"broker %09d" % broker_id],
        -1,
    )


class Controllers:
    """Controllers on the machines `c1`, `c2` and so on. They are formatted at once, and started by `start`.

    `voters` and `observers` are ids of nodes. An observer is no controller, unless it is in `more_controllers`, too.
    """

    def __init__(
        self,
        world: World,
        voters: Sequence[int] = (1, 2, 3),
        observers: Sequence[int] = (),
        *,
        more_controllers: Sequence[int] = (),
        static: bool = False,
        logged_host: str | None = None,
        segment_bytes: int = 1 << 30,
        config: RaftConfig | None = None,
        snapshots: SnapshotSettings | None = None,
    ) -> None:
        self.world = world
        self.snapshots = snapshots or SnapshotSettings()
        self.config = config or RaftConfig()
        self.members: dict[int, Member] = {}
        self.static = static
        self.segment_bytes = segment_bytes
        self.controllers = {*voters, *more_controllers}
        self.more_endpoints: dict[int, tuple[tuple[str, str, int], ...]] = {}
        """Further endpoints that a node registers."""
        self.ports: dict[int, int] = {}
        """The ports of nodes that have moved."""
        self.bootstrap = tuple((host_of(each), PORT) for each in voters)
        """The bootstrap servers of nodes that start from now on."""
        self.voters = VoterSet.of(
            Voter(ReplicaKey(each, directory_of(each)), ((LISTENER, logged_host or host_of(each), PORT),))
            for each in voters
        )
        for node_id in (*voters, *observers):
            self.format(node_id)

    def format(self, node_id: int) -> None:
        """Format a new disk's directory. A voter's directory gets the id that the set of voters has."""
        root = self.world.machine(host_of(node_id)).disk.open_dir(PATH, create=True)
        is_voter = node_id in self.voters.node_ids
        voters = self.voters if is_voter and not self.static else None
        format_directory(root, node_id, directory_of(node_id), cluster_id=CLUSTER_ID, voters=voters)

    def _static_voters(self) -> VoterSet:
        """Return the voters as static configuration has them, without directory ids."""
        if not self.static:
            return NO_VOTERS
        return VoterSet.of(
            attrs.evolve(each, key=ReplicaKey(each.key.node_id)) for each in self.voters.voters
        )

    def start(self, node_id: int) -> None:
        """Start the node's process."""
        running = self.world.start(host_of(node_id), lambda env: self._run(node_id, env))
        running.on_end = lambda: self._ended(node_id, running)

    def _ended(self, node_id: int, running: Running) -> None:
        member = self.members.get(node_id)
        if member is not None and member.running is running:
            del self.members[node_id]

    async def _run(self, node_id: int, env: Env) -> None:
        journal = KeptLog()
        root = env.open_dir(PATH)
        meta = find_meta_properties(root)
        assert meta is not None
        is_controller = node_id in self.controllers
        log = await env.workers.run(
            lambda: MetadataLog.open(
                root,
                clock=env.clock,
                logger=journal,
                settings=MetadataLogSettings(segment_bytes=self.segment_bytes),
                may_vote=is_controller,
            )
        )
        bootstrap = log.bootstrap()
        service = MetadataService(
            env,
            log,
            log.snapshots,
            FileQuorumStateStore(log.directory),
            MetadataSettings(
                QuorumSettings(
                    ReplicaKey(meta.node_id, meta.directory_id),
                    meta.cluster_id,
                    self.config,
                    self._static_voters(),
                    self.bootstrap,
                    (
                        (LISTENER, host_of(node_id), self.port_of(node_id)),
                        *self.more_endpoints.get(node_id, ()),
                    )
                    if is_controller
                    else (),
                ),
                ControllerSettings() if is_controller else None,
                self.snapshots,
                () if bootstrap is None else bootstrap.records,
            ),
            journal,
        )
        member = Member(node_id, env, service, log, journal, self.world.machine(host_of(node_id)).running)
        async with trio.open_nursery() as nursery:
            await service.start(nursery)
            if is_controller:
                self._listen(env, service, nursery, journal, self.port_of(node_id))
            self.members[node_id] = member
            await member.stop.wait()
            await service.stop()
            log.close()
            nursery.cancel_scope.cancel()

    def port_of(self, node_id: int) -> int:
        """Return the port of a node's listener at its next start."""
        return self.ports.get(node_id, PORT)

    def _listen(
        self, env: Env, service: MetadataService, nursery: trio.Nursery, journal: KeptLog, port: int
    ) -> None:
        decided = Controller(ControllerSettings()).requests
        table = build_controller_table(service, lambda: service.committed_image, decided)
        serve_table(
            env,
            nursery,
            table,
            log=journal,
            port=port,
            listener=LISTENER,
            buffers=ReceiveBuffers(1 << 24),
            idle_ms_max=60_000,
        )

    # -- actions of tests
    # -------------------------------------------------------------------------------------------------

    def start_all(self) -> None:
        for node_id, machine in [(each, self.world.machine(host_of(each))) for each in self.node_ids]:
            if machine.env is None or not machine.env.alive:
                self.start(node_id)

    @property
    def node_ids(self) -> list[int]:
        return sorted(int(name[1:]) for name in self.world.machines if name[1:].isdigit())

    def crash(self, node_id: int, keep: Any = "all") -> None:
        self.world.crash(host_of(node_id), keep)

    async def stop(self, node_id: int) -> None:
        """Stop a node cleanly."""
        member = self.members[node_id]
        assert member.running is not None
        member.stop.set()
        await member.running.ended.wait()

    async def until(self, condition: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Wait until the call returns a true value, and return it. Fail after this virtual time."""
        deadline = self.world.now + seconds
        while not (found := condition()):
            assert self.world.now < deadline, (
                f"the condition did not become true within {seconds} s of virtual time"
            )
            await self.world.sleep(0.005)
        return found

    def active(self) -> Member | None:
        """Return the active controller of the newest epoch, or None."""
        found = [each for each in self.members.values() if each.env.alive and each.is_active]
        return max(found, key=lambda each: each.service.quorum.leader_epoch, default=None)

    async def leader(self, seconds: float = 30.0) -> Member:
        member: Member = await self.until(self.active, seconds)
        return member

    async def ask(self, request: Any, seconds: float = 30.0) -> Any:
        """Send a request to the active controller, until the answer is not NOT_CONTROLLER."""
        deadline = self.world.now + seconds
        while True:
            member = await self.leader(deadline - self.world.now)
            answers: list[Any] = []
            member.service.submit(request).on_release(answers.append)
            await self.until(lambda member=member, answers=answers: answers or not member.env.alive, seconds)
            if answers and not _is_refused(answers[0]):
                return answers[0]
            await self.world.sleep(0.01)

    async def agree(self, seconds: float = 30.0) -> None:
        """Wait until every live node has the leader's committed image."""
        leader = await self.leader(seconds)
        offset = leader.service.quorum.decisions.high_watermark

        def all_there() -> bool:
            images = [each.service.committed_image for each in self.members.values()]
            return all(
                each.service.quorum.decisions.high_watermark >= offset for each in self.members.values()
            ) and all(image.brokers == images[0].brokers for image in images)

        await self.until(all_there, seconds)

    async def ask_quorum(self, node_id: int, request: Any, seconds: float = 30.0) -> Any:
        """Send a request to a node's listener for the quorum, and return the answer."""
        asking = self.world.node_env("client")
        peers = PeerConnections(asking, self.world.tasks, client_id="test", log=KeptLog())
        answer = await peers.channel(host_of(node_id), self.port_of(node_id)).request(
            request, asking.clock.monotonic() + seconds
        )
        peers.close()
        return answer

    def log_of(self, node_id: int) -> list[MetadataBatch]:
        """Return the batches on a node's disk."""
        directory = self.world.machine(host_of(node_id)).disk.open_dir(PATH).subdir("__cluster_metadata-0")
        batches: list[MetadataBatch] = []
        for name in directory.list():
            if name.endswith(".log"):
                data = directory.read_bytes(name)
                batches += read_batches(data, source=f"{host_of(node_id)}/{name}")
        return batches


def _is_refused(answer: Any) -> bool:
    topics = getattr(answer, "topics", None) or getattr(answer, "responses", None)
    code = topics[0].error_code if topics else getattr(answer, "error_code", 0)
    return int(code) in (41, 7)


def host_of(node_id: int) -> str:
    return f"c{node_id}"


def directory_of(node_id: int) -> bytes:
    return b"directory %06d" % node_id


def calm_world(seed: int = 1) -> World:
    return World(seed, Weather())


def play(script: Script, world: World | None = None, **options: Any) -> None:
    """Start all nodes, and run the script."""
    world = world or calm_world()
    controllers = Controllers(world, **options)

    async def main() -> None:
        controllers.start_all()
        await script(world, controllers)

    world.run(main)


def add(node_id: int) -> AddRaftVoterRequest:
    listener = AddListener("CONTROLLER", host_of(node_id), 9093)
    return AddRaftVoterRequest(CLUSTER_ID, 1000, node_id, directory_of(node_id), [listener])


def remove(node_id: int) -> RemoveRaftVoterRequest:
    return RemoveRaftVoterRequest(CLUSTER_ID, node_id, directory_of(node_id))
