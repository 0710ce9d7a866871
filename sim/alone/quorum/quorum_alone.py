"""Schedules for the metadata quorum, drawn from a seed: replicas of the metadata log on simulated disks. PURE.

`run(seed)` draws voters, observers, the sizes of segments and snapshots, and the faults. Each replica runs the
product's `MetadataService`: driver, core, metadata log, snapshots, publisher and controller. Only sockets and the
scheduler are simulated. The seed draws which runnable task is stepped next (`stepping.py`). Messages are late, lost
or duplicated (`quorum_network.py`). Replicas crash at any await or within a disk call. They lose power, their syncs
fail, their disks are full or hang. Voters are added and removed. Clients register brokers, because each
registration is visible in the metadata image.

`quorum_checks.py` checks each step. At the end all faults are healed. Then a leader must be elected, and every
replica must have the image that a replay of the committed log gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import attrs

from odradek.data_plane.metadata_log import MetadataRetention
from odradek.metadata_quorum.features import SUPPORTED_FEATURES
from odradek.metadata_quorum.raft.voters import VoterSet
from odradek.metadata_quorum.service import MetadataService
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.add_raft_voter import AddRaftVoterRequest
from odradek.wire.messages.add_raft_voter import Listener as VoterListener
from odradek.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)
from odradek.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from odradek.wire.structure import Message
from sim.alone.quorum.quorum_checks import Promises
from sim.alone.quorum.quorum_network import Network, NetworkPlan
from sim.alone.quorum.quorum_node import (
    CLUSTER_ID,
    LISTENER,
    PORT,
    Node,
    NodePlan,
    host_of,
    key_of,
    voter_of,
)
from sim.alone.quorum.stepping import Process, Steps
from sim.history import SafetyViolation

__all__ = ["QuorumPlan", "run"]

ROUNDS_DEFAULT = 60
HEAL_SECONDS = 30.0
POINTS = (
    "metadata.early_snapshot",
    "metadata.small_replay",
    "quorum.resign",
    "quorum.short_read",
    "quorum.small_batch",
    "snapshot.tiny_chunk",
)


@attrs.frozen
class QuorumPlan:
    """Parameters of a schedule. `weights` has the weight of each kind of event; `gap_seconds` is the longest time
    between two events.
    """

    voters: int = 3
    observers: int = 0
    rounds: int = ROUNDS_DEFAULT
    gap_seconds: float = 0.2
    weights: Mapping[str, float] = attrs.Factory(dict)
    death_probability: float = 0.0
    """The probability that a process is killed before a step of one of its tasks."""
    node: NodePlan = attrs.Factory(NodePlan)
    network: NetworkPlan = attrs.Factory(NetworkPlan)

    @classmethod
    def draw(cls, random: Random, rounds: int = ROUNDS_DEFAULT) -> QuorumPlan:
        """Draw a plan. Independently of the others, each kind of event is rare, common or absent (swarm testing)."""
        weights = {name: random.choice(choices) for name, choices in _WEIGHTS.items()}
        points = [point for point in POINTS if random.random() < 0.25]
        node = NodePlan(
            random.choice((400, 1500, 1 << 20)),
            random.choice((300, 1000, 1 << 20)),
            random.choice((None, None, MetadataRetention(2000, -1))),
            random.choice(((0.0, 0.002), (0.001, 0.02), (0.0, 0.2))),
            random.choice((1, 500, 1 << 20)),
            frozenset(points),
            random.choice((0.05, 0.3)),
        )
        network = NetworkPlan(
            random.choice(((0.0005, 0.002), (0.001, 0.03), (0.001, 0.15))),
            random.choice((0.0, 0.0, 0.1)),
            random.choice((0.0, 0.0, 0.02, 0.1)),
            random.choice((0.0, 0.05)),
        )
        return cls(
            random.choice((1, 2, 3, 3, 3, 3, 4, 5)),
            random.choice((0, 0, 1)),
            rounds,
            random.choice((0.1, 0.3)),
            weights,
            random.choice((0.0, 0.0, 0.0005, 0.002)),
            node,
            network,
        )


_WEIGHTS: Mapping[str, tuple[float, ...]] = {
    "register": (8.0, 16.0),
    "start": (4.0, 10.0),
    "crash": (0.0, 0.5, 2.0),
    "power": (0.0, 0.5, 2.0),
    "cut_power": (0.0, 0.5),
    "fail_sync": (0.0, 0.0, 0.5),
    "fill": (0.0, 0.0, 0.5),
    "hang": (0.0, 0.0, 0.5),
    "isolate": (0.0, 0.5, 1.5),
    "join": (1.0, 3.0),
    "break": (0.0, 0.5),
    "add": (0.0, 1.0, 3.0),
    "remove": (0.0, 1.0, 3.0),
    "resign": (0.0, 0.0, 0.5),
}


def run(seed: int, plan: QuorumPlan | None = None) -> Mapping[str, int]:
    """Run one schedule, and return counts of its events, each with a name. Raises `SafetyViolation`, and the product's
    exceptions.
    """
    random = Random(f"{seed}/quorum")
    return _Run(QuorumPlan.draw(random) if plan is None else plan, random).run()


class _Run:
    """One run of a schedule: replicas that crash and restart."""

    def __init__(self, plan: QuorumPlan, random: Random) -> None:
        self._plan = plan
        self._random = random
        self._steps = Steps(Random(f"{random.random()}"))
        self._network = Network(self._steps, Random(f"{random.random()}"), plan.network)
        ids = range(1, plan.voters + plan.observers + 1)
        self._nodes = {
            each: Node(each, self._steps, self._network, Random(f"{random.random()}"), plan.node)
            for each in ids
        }
        self._network.nodes = {host_of(each): node for each, node in self._nodes.items()}
        voters = VoterSet.of(voter_of(each) for each in ids[: plan.voters])
        self._promises = Promises(self._nodes, voters)
        for node_id, node in self._nodes.items():
            node.format(voters if node_id <= plan.voters else None)
            node.on_send = self._promises.sends
            node.on_open = self._opened
            node.on_call = self._promises.look
        self._network.on_answer = lambda node_id, request, response: self._promises.answers(
            self._nodes[node_id], request, response
        )
        self._steps.before = self._may_die
        self._steps.after = self._look
        self._of_process: dict[Process, Node] = {}
        self._dies = plan.death_probability
        self._next_broker = 100
        self.deaths = 0

    def run(self) -> Mapping[str, int]:
        """Run the schedule, and return counts of its events, each with a name."""
        try:
            return self._run()
        finally:
            for node in self._nodes.values():
                if node.process is not None:
                    node.process.kill()

    def _run(self) -> Mapping[str, int]:
        random, plan = self._random, self._plan
        for node in self._nodes.values():
            self._begin_life(node)
        kinds = [kind for kind, weight in plan.weights.items() if weight]
        weights = [plan.weights[kind] for kind in kinds]
        for kind in random.choices(kinds, weights, k=plan.rounds):
            self._steps.run_until(self._steps.now + random.random() * plan.gap_seconds)
            getattr(self, f"_{kind}")()
        self._heal()
        return {
            "acknowledged": len(self._promises.acknowledged),
            "leaders": len(self._promises.leaders),
            "deaths": self.deaths,
            "steps": self._steps.count,
        }

    # -- process runs ---------------------------------------------------------------------------------------------

    def _begin_life(self, node: Node) -> None:
        self._promises.look_at_snapshots(node)
        node.start()
        assert node.process is not None
        self._of_process[node.process] = node

    def _opened(self, node: Node) -> None:
        assert node.service is not None
        node.service.subscribe(lambda image, delta: self._promises.published(node, image))

    def _may_die(self, process: Process) -> None:
        """Kill the process with the plan's probability. Called before each step of its tasks."""
        if self._dies and self._random.random() < self._dies:
            self._kill(self._of_process[process], power=self._random.random() < 0.5)

    def _look(self, process: Process) -> None:
        if process.lives:
            self._promises.look(self._of_process[process])

    def _kill(self, node: Node, *, power: bool) -> None:
        self.deaths += 1
        node.die(self._random.choice(("random", "synced")) if power else "all")

    def _some(self, *, alive: bool = True) -> Node | None:
        found = [node for node in self._nodes.values() if node.lives is alive]
        return self._random.choice(found) if found else None

    # -- events ---------------------------------------------------------------------------------------------------

    def _register(self) -> None:
        """Register one to four brokers at a random node that considers itself the active controller."""
        active = [node for node in self._nodes.values() if node.service and node.service.is_active]
        if not active:
            return
        node = self._random.choice(active)
        service = node.service
        assert service is not None
        for _ in range(self._random.choice((1, 1, 4))):
            broker_id = self._next_broker = self._next_broker + 1
            request = _registration(broker_id)

            def answered(response: BrokerRegistrationResponse, broker_id: int = broker_id) -> None:
                if response.error_code == ErrorCode.NONE:
                    self._promises.acknowledge(node, broker_id)

            node.call(self._submit, service, request, answered)
            if not node.lives:
                return

    @staticmethod
    def _submit(service: MetadataService, request: Message, answered: Callable[..., None]) -> None:
        service.submit(request).on_release(answered)

    def _start(self) -> None:
        node = self._some(alive=False)
        if node is not None:
            self._begin_life(node)

    def _crash(self) -> None:
        node = self._some()
        if node is not None:
            self._kill(node, power=False)

    def _power(self) -> None:
        """Cut the power of one random machine (80 %), or of all machines."""
        for node in [self._some()] if self._random.random() < 0.8 else list(self._nodes.values()):
            if node is not None and node.lives:
                self._kill(node, power=True)

    def _cut_power(self) -> None:
        """Cut a machine's power within one of its next 12 disk calls."""
        node = self._some()
        if node is not None:
            node.disk.crash_at(node.disk.operation_count + self._random.randint(1, 12))

    def _fail_sync(self) -> None:
        node = self._some()
        if node is not None:
            node.fail_sync()

    def _fill(self) -> None:
        """Fill a disk almost completely for up to 3 s."""
        node = self._some()
        if node is not None:
            life, disk = node.life, node.disk
            node.expects_failure = True
            disk.capacity_bytes = disk.used_bytes + self._random.choice((0, 50, 300))

            def make_room() -> None:
                if node.life == life:
                    disk.capacity_bytes = None

            self._steps.at(self._steps.now + 3 * self._random.random(), make_room)

    def _hang(self) -> None:
        node = self._some()
        if node is not None:
            node.hangs_until = self._steps.now + self._random.choice((0.1, 0.6, 2.0))

    def _isolate(self) -> None:
        """Cut one or two random nodes off from all other nodes. If two are cut off, they still reach each other."""
        count = self._random.choice((1, 1, 2))
        ids = list(self._nodes)
        self._network.cut_off = tuple(self._random.sample(ids, min(count, len(ids))))

    def _join(self) -> None:
        """Reconnect all nodes."""
        self._network.cut_off = ()

    def _break(self) -> None:
        self._network.break_some()

    def _leader(self) -> Node | None:
        leading = [
            node
            for node in self._nodes.values()
            if node.is_listening and node.service and node.service.quorum.decisions.is_leading
        ]
        return self._random.choice(leading) if leading else None

    def _add(self) -> None:
        """Send an AddRaftVoter request for a random node to the leader."""
        leader, node_id = self._leader(), self._random.choice(list(self._nodes))
        if leader is not None:
            listener = VoterListener(LISTENER, host_of(node_id), PORT)
            directory_id = key_of(node_id).directory_id
            request = AddRaftVoterRequest(CLUSTER_ID, 1000, node_id, directory_id, [listener])
            leader.receive(request, 1, lambda response: None)

    def _remove(self) -> None:
        """Send a RemoveRaftVoter request for a random node, which may be the leader, to the leader."""
        leader, node_id = self._leader(), self._random.choice(list(self._nodes))
        if leader is not None:
            request = RemoveRaftVoterRequest(CLUSTER_ID, node_id, key_of(node_id).directory_id)
            leader.receive(request, 0, lambda response: None)

    def _resign(self) -> None:
        leader = self._leader()
        if leader is not None and leader.service is not None:
            quorum = leader.service.quorum
            leader.call(quorum.report, quorum.core.resign)

    # -- the end of a schedule ------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Remove all faults and start all nodes. Raise `SafetyViolation` unless, within 30 s, one node leads and all
        nodes have applied the whole committed log.
        """
        self._dies = 0.0
        self._network.cut_off = ()
        self._network.plan = NetworkPlan()
        for node in self._nodes.values():
            node.disk.forget_faults()
            node.disk.capacity_bytes = None
            node.hangs_until = 0.0
        deadline = self._steps.now + HEAL_SECONDS
        while self._steps.now < deadline:
            for node in self._nodes.values():
                if not node.lives:
                    self._begin_life(node)
            self._steps.run_until(self._steps.now + 0.5)
            if self._is_whole():
                self._promises.check()
                return
        raise SafetyViolation(f"a healed quorum does not come together: {self._told()}")

    def _is_whole(self) -> bool:
        services = [node.service for node in self._nodes.values() if node.is_listening]
        if len(services) < len(self._nodes) or sum(bool(each and each.is_active) for each in services) != 1:
            return False
        end = self._promises.committed_end
        return all(
            each.quorum.log.log_end_offset == each.quorum.decisions.high_watermark == end
            # The active controller's image ends at its last decision. Control records may follow that decision in the
            # log, so this image may end earlier than the images of the other nodes.
            and (each.is_active or each.committed_image.offset == end - 1)
            for each in services
            if each is not None
        )

    def _told(self) -> dict[int, object]:
        return {
            node_id: None if node.service is None else node.service.quorum.statistics()
            for node_id, node in self._nodes.items()
        }


def _registration(broker_id: int) -> BrokerRegistrationRequest:
    """Make a registration request for a broker that sends nothing afterwards. A registration is the simplest decision
    that is visible in the image.
    """
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
