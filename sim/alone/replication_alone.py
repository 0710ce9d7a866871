"""Schedules for the replication of one partition, drawn from a seed: three replicas without whole nodes or sockets.
PURE.

The parts are the product's: `Partition`, its log on a simulated disk, both ends of fetch sessions, and truncation
(`sim.alone.replication_broker`). Requests and answers arrive late, twice over several connections, or never. A broker
may receive new metadata at any later time. Brokers crash and keep their page caches. They lose power only while
another in-sync replica is up (the fault model of `sim.storm.storm`). Leaders are elected, pause, and learn late that
they were deposed.

Two idempotent producers send batches with acks=all. Each has one batch in flight and repeats it until it is
acknowledged. `sim.alone.replication_checks` checks every step: synced records survive, and records that a consumer
could read stay on every replica. At the end no acknowledged record is lost, moved, duplicated or out of order. The
replicas are equal, and all are in sync again.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import attrs

from odradek.data_plane.log.log_config import LogConfig
from odradek.wire.errors import ErrorCode
from sim.alone.replication_broker import Broker
from sim.alone.replication_checks import Promises
from sim.alone.replication_controller import NODES, Controller, Proposal
from sim.alone.replication_fetches import Fetches
from sim.alone.replication_producers import Producers
from sim.history import SafetyViolation

STEPS_DEFAULT = 600
HEAL_ROUNDS_MAX = 400

__all__ = ["PartitionRun", "ReplicationPlan", "run"]


@attrs.frozen
class ReplicationPlan:
    """Parameters of a schedule: the weights of its steps, and settings of the topic. `min_isr` is
    `min.insync.replicas`.
    """

    steps: int = STEPS_DEFAULT
    min_isr: int = 2
    weights: Mapping[str, float] = attrs.Factory(dict)
    segment_bytes: int = 600
    index_interval_bytes: int = 4096
    """The bytes of log between two index entries. With 0 each batch except a segment's first has an entry, so that
    lookups use the index.
    """
    remembers: bool = False
    """True if brokers write recovery points. Then a starting broker reads a saved state of the producers, and only
    the bytes after the recovery point.
    """

    @classmethod
    def draw(cls, random: Random, steps: int = STEPS_DEFAULT) -> ReplicationPlan:
        """Draw a plan. Independently of the others, each kind of step is rare, common or absent (swarm testing)."""
        weights = {name: random.choice(choices) for name, choices in _WEIGHTS.items()}
        return cls(
            steps,
            random.choice((1, 2, 2)),
            weights,
            random.choice((250, 600, 2000)),
            random.choice((0, 0, 4096)),
            random.random() < 0.6,
        )

    def log_config(self) -> LogConfig:
        """Return the topic's configuration."""
        return LogConfig(
            segment_bytes=self.segment_bytes,
            index_interval_bytes=self.index_interval_bytes,
            min_insync_replicas=self.min_isr,
        )


_WEIGHTS: Mapping[str, tuple[float, ...]] = {
    "fetch": (10.0, 20.0),
    "answer": (10.0, 20.0),
    "learn": (2.0, 6.0),
    "produce": (4.0, 8.0),
    "decide": (2.0, 4.0),
    "time": (1.0, 3.0),
    "lose": (0.0, 0.5, 2.0),
    "crash": (0.0, 0.4, 1.0),
    "power": (0.0, 0.4, 1.0),
    "stop": (0.0, 0.3),
    "start": (2.0,),
    "elect": (0.0, 0.5, 1.5),
    "fence": (0.0, 0.3),
    "sync": (0.0, 1.0),
    "cut": (0.0, 0.5),
}


def run(seed: int, plan: ReplicationPlan | None = None) -> Mapping[str, int]:
    """Run one schedule, and return counts of its events, each with a name. Raises `SafetyViolation`, and the product's
    exceptions.
    """
    random = Random(f"{seed}/replication")
    return PartitionRun(ReplicationPlan.draw(random) if plan is None else plan, random).run()


class PartitionRun:
    """One run of a schedule: brokers that crash and restart, and the leaders' ISR proposals to the controller."""

    def __init__(self, plan: ReplicationPlan, random: Random) -> None:
        self.plan = plan
        self.random = random
        self.config = plan.log_config()
        self.remembers = plan.remembers
        self.now_ms = 10_000
        self._controller = Controller()
        self.images = self._controller.images
        self.nodes = {node_id: Broker(node_id, self) for node_id in NODES}
        self._fetches = Fetches(random, self.nodes)
        self.proposals: list[Proposal] = []
        self._promises = self._new_promises()
        self._producers = Producers(random, self._promises)
        self.deaths = 0

    def _new_promises(self) -> Promises:
        return Promises(self.plan.min_isr)

    def run(self) -> Mapping[str, int]:
        """Run the schedule, and return counts of its events, each with a name."""
        random, plan = self.random, self.plan
        for node_id in NODES:
            self._begin_life(node_id)
        self._elect()
        for node in self.nodes.values():
            self._apply_all(node)
        kinds = [kind for kind, weight in plan.weights.items() if weight]
        weights = [plan.weights[kind] for kind in kinds]
        for kind in random.choices(kinds, weights, k=plan.steps):
            getattr(self, f"_{kind}")()
            self._promises.look(self._living())
        self._heal()
        self._promises.check(self.nodes)
        return self._told()

    def _told(self) -> Mapping[str, int]:
        return {
            "acknowledged": len(self._promises.acknowledged),
            "epochs": self._controller.state.leader_epoch,
            "deaths": self.deaths,
        }

    # --- brokers and their controller

    def _begin_life(self, node_id: int) -> None:
        node = self.nodes[node_id]
        node.start()
        self._born(node)
        node.broker_epoch = self._controller.register(node_id)
        # Apply the metadata at once, since a broker serves no request before it knows of its own registration.
        self._apply_all(node)

    def _born(self, node: Broker) -> None:
        """Called when a broker's process has started, before the broker receives any metadata. Subclasses override
        this method.
        """

    def _apply(self, node: Broker) -> None:
        """Apply the newest metadata that the broker has received to its partition."""
        node.partition.apply(self.images[node.images_seen - 1][0], node.node_id)

    def propose(self, node: Broker) -> None:
        """Send the leader's pending ISR change to the controller."""
        self.proposals.append(Proposal.of(node))

    def _decide(self) -> None:
        """Choose a random ISR proposal. Let the controller decide it, or deliver the decision to the leader if there
        is one already.
        """
        if not self.proposals:
            return
        asked = self.random.choice(self.proposals)
        if asked.code is None:
            self._controller.decide(asked)
            if self.random.random() < 0.1:
                self.proposals.remove(asked)  # The answer is lost, and the leader asks again.
                self._ask_again(asked)
            return
        self.proposals.remove(asked)
        node = self.nodes[asked.leader]
        if not node.lives or node.life != asked.life:
            return
        if asked.code is ErrorCode.NONE and asked.state is not None:
            node.partition.isr_decided(
                asked.proposal, asked.state.leader_epoch, asked.state.partition_epoch, asked.state.isr
            )
        elif node.partition.isr_refused(asked.proposal, asked.code):
            self._ask_again(asked)

    def _ask_again(self, asked: Proposal) -> None:
        node = self.nodes[asked.leader]
        if node.lives and node.life == asked.life and node.partition.isr_state is asked.proposal:
            self.propose(node)

    # --- steps

    def _living(self) -> list[Broker]:
        return [node for node in self.nodes.values() if node.lives]

    def _learn(self) -> None:
        """Let a random broker receive the next metadata change, or all changes that it has not received yet."""
        node = self.random.choice(list(self.nodes.values()))
        if node.lives and node.images_seen < len(self.images):
            behind = len(self.images) - node.images_seen
            node.images_seen += self.random.choice((1, behind))
            self._apply(node)

    def _apply_all(self, node: Broker) -> None:
        if node.images_seen < len(self.images):
            node.images_seen = len(self.images)
            self._apply(node)

    def _fetch(self) -> None:
        node = self.random.choice(list(self.nodes.values()))
        if node.lives:
            self._fetches.ask(node)

    def _answer(self) -> None:
        self._fetches.deliver_one()

    def _lose(self) -> None:
        self._fetches.lose_one()

    def _produce(self) -> None:
        self._producers.produce(self._living(), self.now_ms)

    def _time(self) -> None:
        """Advance time by 10 to 1500 ms. Leaders then remove lagging followers from the ISR."""
        self.now_ms += self.random.choice((10, 100, 600, 1500))
        for node in self._living():
            if node.partition.is_leader:
                node.partition.look_again()
                node.partition.shrink_isr(self.now_ms)
        if self.random.random() < 0.3:
            self._producers.time_out()

    def _crash(self) -> None:
        self._kill(power=False)

    def _power(self) -> None:
        self._kill(power=True)

    def _stop(self) -> None:
        """Shut a random broker down cleanly; the controller fences it."""
        node = self.random.choice(list(self.nodes.values()))
        if node.lives:
            self.deaths += 1
            node.stop()
            self._fetches.lose_all_of(node.node_id)
            self._controller.fence(node.node_id)

    def _kill(self, *, power: bool) -> None:
        """Crash a random broker's process or cut its power. Power is cut only while another in-sync replica keeps all
        data.
        """
        node = self.random.choice(list(self.nodes.values()))
        if not node.lives:
            return
        others = [
            each for each in self._controller.state.isr if each != node.node_id and self.nodes[each].lives
        ]
        if power and (not others or self._has_lost_power(node)):
            return
        self.deaths += 1
        node.die(power=power)
        self._fetches.lose_all_of(node.node_id)
        if power or self.random.random() < 0.5:
            self._controller.fence(node.node_id)

    def _has_lost_power(self, node: Broker) -> bool:
        """True if another in-sync replica is down. It may have lost power, so that this broker's page cache may hold
        the only copy of some records.
        """
        return any(not self.nodes[each].lives for each in self._controller.state.isr if each != node.node_id)

    def _start(self) -> None:
        for node_id, node in self.nodes.items():
            if not node.lives and self.random.random() < 0.5:
                self._begin_life(node_id)

    def _elect(self) -> None:
        self._controller.elect(self.random)

    def _fence(self) -> None:
        """Fence and unfence a random living broker."""
        node = self.random.choice(self._living() or list(self.nodes.values()))
        if node.lives and len(self._controller.state.isr) > 1:
            self._controller.fence(node.node_id)
            self._controller.unfence(node)

    def _sync(self) -> None:
        node = self.random.choice(list(self.nodes.values()))
        if node.lives:
            node.log.flush()
            node.keep_recovery_point()

    def _cut(self) -> None:
        self._fetches.cut()

    # --- the end

    def _heal(self) -> None:
        """Start and reconnect all brokers. Raise `SafetyViolation` unless the replicas become equal and all in sync."""
        self._fetches.mend()
        for node_id, node in self.nodes.items():
            if not node.lives:
                self._begin_life(node_id)
        for _ in range(HEAL_ROUNDS_MAX):
            if self._controller.state.leader < 0:
                self._elect()
            for node in self.nodes.values():
                self._apply_all(node)
                self._fetches.ask(node)
            self._fetches.deliver_all()
            self._decide()
            self.now_ms += 20
            self._promises.look(self._living())
            if self._is_whole():
                return
        logs = {
            node_id: (node.log.log_end_offset, node.log.high_watermark)
            for node_id, node in self.nodes.items()
        }
        raise SafetyViolation(
            f"the replicas do not come together: {self._controller.state.isr} in sync, {logs}"
        )

    def _is_whole(self) -> bool:
        leader = self.nodes.get(self._controller.state.leader)
        if (
            leader is None
            or not leader.partition.is_leader
            or sorted(self._controller.state.isr) != list(NODES)
        ):
            return False
        end = leader.log.log_end_offset
        return all(
            node.log.log_end_offset == end and node.log.high_watermark == end for node in self.nodes.values()
        )
