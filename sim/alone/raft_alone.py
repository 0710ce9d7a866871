"""Schedules for Raft cores, drawn from a seed, without nodes, encoded bytes or a task scheduler. PURE.

`run(seed)` draws voters, observers and the steps of a schedule. Messages arrive in any order, late, twice or never.
Nodes crash between any two effects, and restart with their synced entries. Time advances for each node at other steps
of the schedule. Voters are added and removed. Snapshots replace the log. `sim.alone.raft_cluster` checks Raft's
safety properties (figure 3 of the paper) after each step. At the end the network heals; then a leader must be elected
and its records committed on every node.

Each schedule covers less than a simulated cluster, since it has neither bytes nor disks. But thousands of schedules run
per minute, so they find faults that need a rare order of few events.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import attrs

from odradek.metadata_quorum.raft import membership
from odradek.metadata_quorum.raft.voters import Voter
from odradek.wire.errors import ErrorCode
from sim.alone.raft_cluster import Cluster, Question
from sim.history import SafetyViolation

STEPS_DEFAULT = 400
HEAL_SECONDS = 20.0
TICKS = (0.001, 0.01, 0.1, 0.5, 2.0)

__all__ = ["RaftPlan", "run"]


@attrs.frozen
class RaftPlan:
    """Parameters of a schedule: the weights of its steps, and the probability that a node crashes between two effects."""

    voters: int = 3
    observers: int = 0
    steps: int = STEPS_DEFAULT
    weights: Mapping[str, float] = attrs.Factory(dict)
    death_probability: float = 0.0

    @classmethod
    def draw(cls, random: Random, steps: int = STEPS_DEFAULT) -> RaftPlan:
        """Draw a plan. Independently of the others, each kind of step is rare, common or absent (swarm testing)."""
        weights = {name: random.choice(choices) for name, choices in _WEIGHTS.items()}
        return cls(
            random.choice((1, 2, 3, 3, 3, 3, 5)),
            random.choice((0, 0, 1)),
            steps,
            weights,
            random.choice((0.0, 0.0, 0.002, 0.02)),
        )


_WEIGHTS: Mapping[str, tuple[float, ...]] = {
    "deliver": (8.0, 8.0, 20.0),
    "tick": (4.0, 8.0),
    "sync": (2.0, 6.0),
    "quiet": (0.2, 1.0),
    "append": (1.0, 3.0),
    "lose": (0.0, 1.0, 4.0),
    "twice": (0.0, 1.0),
    "crash": (0.0, 0.5, 2.0),
    "start": (2.0,),
    "snapshot": (0.0, 1.0),
    "voters": (0.0, 0.5),
    "resign": (0.0, 0.3),
    "isolate": (0.0, 0.3, 1.0),
}


def run(seed: int, plan: RaftPlan | None = None) -> Mapping[str, int]:
    """Run one schedule, and return counts of its events, each with a name. Raises `SafetyViolation`, and the cores'
    exceptions.
    """
    random = Random(f"{seed}/raft")
    return _Run(RaftPlan.draw(random) if plan is None else plan, random).run()


class _Run:
    def __init__(self, plan: RaftPlan, random: Random) -> None:
        self._plan = plan
        self._random = random
        ids = range(1, plan.voters + plan.observers + 1)
        self._cluster = Cluster.of(ids[: plan.voters], ids[plan.voters :])
        self._ids = list(ids)
        self._cut_off: frozenset[int] = frozenset()
        """Ids of nodes that reach only each other."""

    def run(self) -> Mapping[str, int]:
        random, plan, cluster = self._random, self._plan, self._cluster
        if plan.death_probability:
            cluster.dies = lambda: random.random() < plan.death_probability
        kinds = [kind for kind, weight in plan.weights.items() if weight]
        weights = [plan.weights[kind] for kind in kinds]
        for kind in random.choices(kinds, weights, k=plan.steps):
            getattr(self, f"_{kind}")()
            cluster.check_log_matching()
        cluster.dies = lambda: False
        self._heal()
        return {
            "committed": len(cluster.committed),
            "leaders": len(cluster.leaders),
            "lives": sum(node.life for node in cluster.nodes.values()),
        }

    def _node(self) -> int:
        return self._random.choice(self._ids)

    # --- steps

    def _deliver(self, *, keep: bool = False) -> None:
        """Deliver one to eight messages, mostly the oldest. A message between separated nodes is lost."""
        cluster, random = self._cluster, self._random
        for _ in range(random.randint(1, 8)):
            if not cluster.letters:
                return
            latest = len(cluster.letters) - 1
            at = random.randint(0, random.choice((0, 0, latest)))
            letter = cluster.letters[at]
            question = letter if isinstance(letter, Question) else letter.question
            if (question.sender in self._cut_off) != (question.receiver in self._cut_off):
                cluster.drop(at)
            else:
                cluster.deliver(at, keep=keep)

    def _twice(self) -> None:
        self._deliver(keep=True)

    def _lose(self) -> None:
        if self._cluster.letters:
            at = self._random.randrange(len(self._cluster.letters))
            self._cluster.drop(at, broken=self._random.random() < 0.5)

    def _tick(self) -> None:
        self._cluster.tick(self._node(), self._random.choice(TICKS))

    def _sync(self) -> None:
        self._cluster.flush(self._node())

    def _quiet(self) -> None:
        """Deliver messages in order and advance time for a while. Without such phases most schedules would elect no
        leader.
        """
        if self._cut_off:
            for _ in range(10):
                self._deliver()
                self._sync()
                self._cluster.tick(self._node(), 0.05)
        else:
            self._cluster.settle(0.3)

    def _append(self) -> None:
        """Append a batch at a random node that considers itself the leader. This node may be a deposed leader."""
        leaders = self._cluster.all_leaders()
        if leaders:
            leader = self._random.choice(leaders)
            self._cluster.append(leader.key.node_id, self._random.randint(1, 3))

    def _crash(self) -> None:
        node_id = self._node()
        if self._cluster.nodes[node_id].core is not None:
            self._cluster.crash(node_id)

    def _start(self) -> None:
        node_id = self._node()
        if self._cluster.nodes[node_id].core is None:
            self._cluster.start(node_id)

    def _snapshot(self) -> None:
        self._cluster.write_snapshot(self._node())

    def _voters(self) -> None:
        """Let the leader choose a random node: add it as a voter or, if it is a voter, remove it. The leader may
        remove itself.
        """
        cluster = self._cluster
        leader = cluster.leader()
        if leader is None or leader.core is None:
            return
        core, voter = leader.core, Voter(cluster.nodes[self._node()].key)
        if core.voters.get(voter.key.node_id) is None:
            if membership.refusal_to_add(core, voter) is ErrorCode.NONE:
                cluster.append(leader.key.node_id, voters=core.voters.with_voter(voter))
        elif membership.refusal_to_remove(core, voter.key) is ErrorCode.NONE:
            cluster.append(leader.key.node_id, voters=core.voters.without(voter.key.node_id))

    def _resign(self) -> None:
        leader = self._cluster.leader()
        if leader is not None and leader.core is not None:
            leader.core.resign(self._cluster.now)
            self._cluster.tick(leader.key.node_id, 0.0)

    def _isolate(self) -> None:
        """Cut up to two random nodes off from all other nodes, or reconnect all nodes."""
        count = self._random.choice((0, 0, 1, 1, 2))
        self._cut_off = frozenset(self._random.sample(self._ids, min(count, len(self._ids) - 1)))

    # --- the end

    def _heal(self) -> None:
        """Start all nodes on a healthy network. A leader must be elected, and its records committed on every node."""
        cluster = self._cluster
        for node_id, node in cluster.nodes.items():
            if node.core is None:
                cluster.start(node_id)
        cluster.settle(HEAL_SECONDS)
        leader = cluster.leader()
        if leader is None:
            raise SafetyViolation("no leader in a healed network")
        cluster.append(leader.key.node_id)
        cluster.settle(5.0)
        leader = cluster.leader()
        if leader is None:
            raise SafetyViolation("the leader goes in a healed network")
        ends = [node.core.high_watermark for node in cluster.nodes.values() if node.core is not None]
        if ends != [cluster.end_offset(leader)] * len(cluster.nodes):
            raise SafetyViolation(f"a healed quorum does not commit: {ends}")
