"""Schedules for the metadata quorum, drawn from a seed: voters that change their addresses, or a copied voter
directory. PURE.

`run(seed)` draws three or five voters, and one of three cases:

* all voters move at once: each restarts at a new address, with corrected bootstrap servers. The log still names the old
  addresses;
* the voters move one by one, while the other voters run;
* a copy of a voter's directory runs at an address of its own, beside the original.

After a move the old address has no listener, or belongs to a node of another cluster or to another voter. Messages
are late, lost or duplicated, and replicas crash at any await. At the end all faults are healed. Then one voter must
lead, and the log must name the new address of every voter. Finally all voters restart with useless bootstrap servers,
so that they find each other's addresses only in the log.

**At every step, an epoch has one leader, and no offset has two committed batches.** These checks treat the copy
like any voter. The network never separates the copy from its original: otherwise the copy would look like a voter
that has moved. For the same reason the original is never down for as long as the fetch timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import attrs

from odradek.metadata_quorum.raft.roles import Leader
from odradek.metadata_quorum.raft.voters import VoterSet
from odradek.wire.errors import ErrorCode
from odradek.wire.schema.anatomy import refuse
from odradek.wire.structure import Message
from sim.alone.quorum.quorum_network import Network, NetworkPlan
from sim.alone.quorum.quorum_node import PORT, RAFT, Node, NodePlan, voter_of
from sim.alone.quorum.quorum_platter import LoggedBatch
from sim.alone.quorum.stepping import Process, Steps
from sim.history import SafetyViolation

__all__ = ["MovePlan", "run"]

ROUNDS_DEFAULT = 40
GAP_SECONDS = 0.4
HEAL_SECONDS = 60.0
ORIGINAL_AWAY_SECONDS = RAFT.fetch_timeout_seconds / 4
NOWHERE = ("nowhere",)


@attrs.frozen
class MovePlan:
    """Parameters of a schedule. `trouble` is "all" (all voters move at once), "one by one" or "copy"."""

    trouble: str
    voters: int = 3
    rounds: int = ROUNDS_DEFAULT
    death_probability: float = 0.0
    network: NetworkPlan = attrs.Factory(NetworkPlan)

    @classmethod
    def draw(cls, random: Random) -> MovePlan:
        """Draw one of the three cases, and the quality of the network."""
        trouble = random.choice(("all", "one by one", "copy"))
        network = NetworkPlan(
            random.choice(((0.0005, 0.002), (0.001, 0.03))),
            # A message that takes as long as the fetch timeout would separate the copy from its original.
            0.0 if trouble == "copy" else random.choice((0.0, 0.1)),
            random.choice((0.0, 0.02, 0.1)),
            random.choice((0.0, 0.05)),
        )
        return cls(
            trouble,
            random.choice((3, 3, 5)),
            ROUNDS_DEFAULT,
            random.choice((0.0, 0.0005)),
            network,
        )


class _Stranger:
    """A node of another cluster, at the former address of a voter."""

    node_id = -1
    life = 0
    lives = has_power = is_listening = True

    def __init__(self, name: str) -> None:
        self.name = name

    def receive(self, message: Message, version: int, respond: Callable[[Message], None]) -> None:
        """Answer every request with INCONSISTENT_CLUSTER_ID, as a node of another cluster does."""
        respond(refuse(message, ErrorCode.INCONSISTENT_CLUSTER_ID))


def run(seed: int, plan: MovePlan | None = None) -> Mapping[str, int]:
    """Run one schedule, and return counts of its events, each with a name. Raises `SafetyViolation`, and the product's
    exceptions.
    """
    random = Random(f"{seed}/moved")
    return _Run(MovePlan.draw(random) if plan is None else plan, random).run()


class _Run:
    """One run of a schedule."""

    def __init__(self, plan: MovePlan, random: Random) -> None:
        self._plan = plan
        self._random = random
        self._steps = Steps(Random(f"{random.random()}"))
        self._network = Network(self._steps, Random(f"{random.random()}"), plan.network)
        ids = range(1, plan.voters + 1)
        self._voters = [self._node(each) for each in ids]
        self._nodes = list(self._voters)
        voters = VoterSet.of(voter_of(each) for each in ids)
        for node in self._voters:
            node.format(voters)
            self._network.nodes[node.host] = node
        self._of_process: dict[Process, Node] = {}
        self._steps.before = self._may_die
        self._steps.after = self._look
        self._dies = 0.0
        self._original: Node | None = None
        self._leaders: dict[int, str] = {}
        """The name of the machine that leads each epoch."""
        self._committed: dict[int, LoggedBatch] = {}
        """Committed batches by their last offset."""
        self._moves = 0
        self._deaths = 0

    def _node(self, node_id: int) -> Node:
        return Node(node_id, self._steps, self._network, Random(f"{self._random.random()}"), NodePlan())

    def run(self) -> Mapping[str, int]:
        """Run the schedule, and return counts of its events, each with a name."""
        try:
            return self._run()
        finally:
            for node in self._nodes:
                if node.process is not None:
                    node.process.kill()

    def _run(self) -> Mapping[str, int]:
        plan = self._plan
        for node in self._nodes:
            self._begin_life(node)
        self._steps.run_until(3.0)
        self._dies = plan.death_probability
        {"all": self._move_all, "one by one": self._storm, "copy": self._copy}[plan.trouble]()
        self._storm()
        self._heal()
        self._break_bootstrap_servers()
        noted = [note for node in self._nodes for note in node.notes]
        return {
            "leaders": len(self._leaders),
            "committed": len(self._committed),
            "moves": self._moves,
            "deaths": self._deaths,
            "copies": sum(
                note in ("quorum.copied_directory", "quorum.voter_at_two_addresses") for note in noted
            ),
            "steps": self._steps.count,
        }

    # -- process runs ---------------------------------------------------------------------------------------------

    def _begin_life(self, node: Node) -> None:
        node.start()
        assert node.process is not None
        self._of_process[node.process] = node

    def _may_die(self, process: Process) -> None:
        if self._dies and self._random.random() < self._dies:
            self._kill(self._of_process[process])

    def _kill(self, node: Node) -> None:
        self._deaths += 1
        node.die("all" if self._random.random() < 0.5 else "synced")
        if node is self._original:
            # If the original stayed down for longer, its copy would look like a voter that has moved.
            self._steps.at(self._steps.now + ORIGINAL_AWAY_SECONDS, lambda: self._revive(node))

    def _revive(self, node: Node) -> None:
        if not node.lives:
            self._begin_life(node)

    # -- troubles -------------------------------------------------------------------------------------------------

    def _move(self, node: Node) -> None:
        """Give a stopped voter a new address. The old address is left unused, or goes to a foreign node or to another
        voter.
        """
        network, old = self._network, node.host
        self._moves += 1
        del network.nodes[old]
        heir = self._random.choice(("nobody", "stranger", "voter"))
        if heir == "stranger":
            network.nodes[old] = _Stranger(f"stranger {self._moves}")
        elif heir == "voter":
            network.nodes[old] = self._random.choice(self._voters)
        node.host = f"{node.name}-{self._moves}"
        network.nodes[node.host] = node

    def _correct_bootstrap_servers(self) -> None:
        hosts = tuple(node.host for node in self._nodes)
        for node in self._nodes:
            node.bootstrap = hosts

    def _move_all(self) -> None:
        for node in self._voters:
            if node.lives:
                self._kill(node)
        for node in self._voters:
            self._move(node)
        self._correct_bootstrap_servers()
        for node in self._voters:
            self._begin_life(node)

    def _copy(self) -> None:
        """Start a node with a copy of a voter's directory at another address. Add that address to all nodes'
        bootstrap servers, and restart the voters.
        """
        original = self._original = self._random.choice(self._voters)
        double = self._node(original.node_id)
        double.name = double.host = "copy"
        double.disk.copy_files(original.disk)
        double.disk.crash("synced")
        self._network.nodes["copy"] = double
        self._nodes.append(double)
        self._correct_bootstrap_servers()
        for node in self._voters:
            if node.lives:
                self._kill(node)
        for node in self._nodes:
            self._revive(node)

    def _storm(self) -> None:
        random = self._random
        for _ in range(self._plan.rounds):
            self._steps.run_until(self._steps.now + random.random() * GAP_SECONDS)
            node = random.choice(self._nodes)
            if not node.lives:
                self._begin_life(node)
            elif random.random() < 0.3:
                self._kill(node)
                if self._plan.trouble == "one by one" and random.random() < 0.5:
                    self._move(node)
                    self._correct_bootstrap_servers()
            elif random.random() < 0.2:
                self._network.break_some()

    # -- the end of a schedule ------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Remove the copy, and restart all voters with correct bootstrap servers. Check that a leader is elected and
        the log names all new addresses.
        """
        self._dies = 0.0
        self._network.plan = NetworkPlan()
        self._original = None
        for node in self._nodes:
            if node.lives:
                self._kill(node)
        if self._plan.trouble == "copy":
            self._network.nodes.pop("copy")
        self._nodes = list(self._voters)
        self._correct_bootstrap_servers()
        self._come_together("healed")

    def _break_bootstrap_servers(self) -> None:
        """Restart all nodes with useless bootstrap servers, so that they find each other's addresses only in the log."""
        for node in self._nodes:
            self._kill(node)
            node.bootstrap = NOWHERE
        self._come_together("restarted without bootstrap servers")

    def _come_together(self, what: str) -> None:
        for node in self._nodes:
            self._begin_life(node)
        deadline = self._steps.now + HEAL_SECONDS
        while self._steps.now < deadline:
            self._steps.run_until(self._steps.now + 0.5)
            if self._is_whole():
                return
        told = {node.name: node.service and node.service.quorum.statistics() for node in self._nodes}
        raise SafetyViolation(f"a quorum that is {what} does not come together: {told}")

    def _is_whole(self) -> bool:
        services = [node.service for node in self._nodes if node.service is not None and node.is_listening]
        if len(services) < len(self._nodes) or sum(service.is_active for service in services) != 1:
            return False
        where = {node.node_id: (node.host, PORT) for node in self._nodes}
        ends = {service.quorum.decisions.high_watermark for service in services}
        return len(ends) == 1 and all(
            {voter.key.node_id: voter.endpoints[0][1:] for voter in service.quorum.voters.voters} == where
            and service.quorum.log.log_end_offset == service.quorum.decisions.high_watermark
            for service in services
        )

    # -- checks ---------------------------------------------------------------------------------------------------

    def _look(self, process: Process) -> None:
        if not process.lives:
            return
        node = self._of_process[process]
        service = node.service
        if service is None or not service.quorum.is_open:
            return
        core = service.quorum.core
        if isinstance(core.role, Leader):
            first = self._leaders.setdefault(core.epoch, node.name)
            if first != node.name:
                raise SafetyViolation(f"epoch {core.epoch} is led by {first} and {node.name}")
        batch = node.platter.find(service.quorum.decisions.high_watermark - 1)
        if batch is not None:
            known = self._committed.setdefault(batch.last_offset, batch)
            if known != batch:
                raise SafetyViolation(f"{node.name} has committed {batch}, and {known} was committed there")
