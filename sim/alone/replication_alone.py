"""Partition replication alone, from a seed: three replicas of one partition without nodes, sockets or a scheduler. PURE.

The parts are the product's: `Partition`, its log on a simulated disk, both ends of fetch sessions, the place to cut at
(`sim.alone.replication_broker`). What is between them is a schedule: requests and answers arrive late, twice over several
connections, or never; each broker hears of the metadata when it pleases; processes die and keep their page cache, or lose
power while another in-sync replica lives (the fault model of `sim.storm.storm`); leaders are elected, pause, and learn late that
they lead no more.

Two idempotent producers send batches with acks=all, one under way each, and send again what was not acknowledged. Held
against every schedule (`sim.alone.replication_checks`): what was synced survives, what a consumer may read stays for ever, on
every replica, and in the end nothing that was acknowledged is lost, moved, doubled or out of order, the replicas are
equal, and all are in sync again.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import attrs

from data_plane.replication.isr_state import CommittedIsr, PendingIsr
from metadata_quorum.image.metadata_image import PartitionImage
from sim.alone.replication_broker import START_MS, Broker, Fetching, Image
from sim.alone.replication_checks import Promises
from sim.history import SafetyViolation
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import RecordBatchBuilder

NODES = (1, 2, 3)
STEPS_DEFAULT = 600
HEAL_ROUNDS_MAX = 400

__all__ = ["ReplicationPlan", "run"]


@attrs.frozen
class ReplicationPlan:
    """What a schedule is made of: weights of its steps. `min_isr` is the topic's `min.insync.replicas`."""

    steps: int = STEPS_DEFAULT
    min_isr: int = 2
    weights: Mapping[str, float] = attrs.Factory(dict)

    @classmethod
    def draw(cls, random: Random, steps: int = STEPS_DEFAULT) -> ReplicationPlan:
        """A swarm: each kind of step is rare, common or absent, each by itself."""
        weights = {name: random.choice(choices) for name, choices in _WEIGHTS.items()}
        return cls(steps, random.choice((1, 2, 2)), weights)


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
    "start": (2.0,),
    "elect": (0.0, 0.5, 1.5),
    "fence": (0.0, 0.3),
    "sync": (0.0, 1.0),
    "cut": (0.0, 0.5),
}


def run(seed: int, plan: ReplicationPlan | None = None) -> Mapping[str, int]:
    """One schedule; what came of it. Raises `SafetyViolation`, and whatever a part raises."""
    random = Random(f"{seed}/replication")
    return _Run(ReplicationPlan.draw(random) if plan is None else plan, random).run()


@attrs.define(eq=False)
class _Proposal:
    """An AlterPartition on its way: to the controller, or back with what it said."""

    leader: int
    life: int
    proposal: PendingIsr
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    """Broker ids with the broker epochs under which they fetched."""
    broker_epoch: int
    code: ErrorCode | None = None
    state: PartitionImage | None = None


@attrs.define(eq=False)
class _Batch:
    """What a producer waits for."""

    producer: int
    sequence: int
    values: tuple[bytes, ...]
    is_waiting: bool = False


@attrs.define(eq=False)
class _Waiter:
    """Waits for the acknowledgement of a batch (`data_plane.replication.partition.AckWaiter`)."""

    run: _Run
    batch: _Batch
    base_offset: int
    last_offset: int

    def acknowledged(self, code: ErrorCode) -> None:
        self.run.settled(self.batch, None if code else self.base_offset)

    def leadership_lost(self) -> None:
        self.run.settled(self.batch, None)


class _Run:
    """One schedule, and the controller's state."""

    def __init__(self, plan: ReplicationPlan, random: Random) -> None:
        self.plan = plan
        self.random = random
        self.min_isr = plan.min_isr
        self.now_ms = 10_000
        self.state = PartitionImage(-1, 0, 0, NODES, NODES, (bytes(16),) * len(NODES))
        self.brokers: dict[int, tuple[int, bool]] = {}
        """Broker epoch, and whether it is unfenced."""
        self.images: list[Image] = []
        self.nodes = {node_id: Broker(node_id, self) for node_id in NODES}
        self.fetches: list[Fetching] = []
        self.proposals: list[_Proposal] = []
        self._silent: tuple[int, int] | None = None
        self._next_epoch = 100
        self.batches: dict[int, _Batch | None] = {1: None, 2: None}
        self._sequences = {1: 0, 2: 0}
        self._serial = 0
        self._sent: dict[bytes, None] = {}
        self._promises = Promises(plan.min_isr)
        self.deaths = 0

    def run(self) -> Mapping[str, int]:
        random, plan = self.random, self.plan
        for node_id in NODES:
            self._begin_life(node_id)
        self._elect_someone()
        for node in self.nodes.values():
            self._apply_all(node)
        kinds = [kind for kind, weight in plan.weights.items() if weight]
        weights = [plan.weights[kind] for kind in kinds]
        for kind in random.choices(kinds, weights, k=plan.steps):
            getattr(self, f"_{kind}")()
            self._promises.look(self._living())
        self._heal()
        self._promises.check(self.nodes)
        return {
            "acknowledged": len(self._promises.acknowledged),
            "epochs": self.state.leader_epoch,
            "deaths": self.deaths,
        }

    # --- the controller

    def _change(self, **fields: object) -> None:
        epoch = self.state.partition_epoch + 1
        self.state = attrs.evolve(self.state, partition_epoch=epoch, **fields)  # type: ignore[arg-type]  # of its own
        self._tell()

    def _tell(self) -> None:
        self.images.append((self.state, dict(self.brokers)))

    def _begin_life(self, node_id: int) -> None:
        """A broker registers: it is out of every ISR that has others (KIP-966), and may lead what has no leader."""
        node = self.nodes[node_id]
        node.start()
        self._next_epoch += 1
        node.broker_epoch = self._next_epoch
        if self.images:
            self._fence_broker(node_id)
        self.brokers[node_id] = (node.broker_epoch, True)
        if self.state.leader < 0 and node_id in self.state.isr and self.images:
            self._change(leader=node_id, leader_epoch=self.state.leader_epoch + 1)
        else:
            self._tell()
        # A broker serves nobody before it has heard of its own registration.
        self._apply_all(node)

    def _fence_broker(self, node_id: int) -> None:
        if node_id in self.brokers:
            self.brokers[node_id] = (self.brokers[node_id][0], False)
        state = self.state
        isr = tuple(each for each in state.isr if each != node_id) or state.isr
        if state.leader == node_id:
            alive = [each for each in isr if self.brokers.get(each, (0, False))[1]]
            self._change(leader=alive[0] if alive else -1, leader_epoch=state.leader_epoch + 1, isr=isr)
        elif isr != state.isr:
            self._change(isr=isr)
        else:
            self._tell()

    def _elect_someone(self) -> None:
        alive = [each for each in self.state.isr if self.brokers.get(each, (0, False))[1]]
        if alive:
            self._change(leader=self.random.choice(alive), leader_epoch=self.state.leader_epoch + 1)

    def propose(self, node: Broker) -> None:
        """A leader's proposal goes on its way."""
        proposal = node.partition.isr_state
        assert not isinstance(proposal, CommittedIsr)
        partition = node.partition
        isr = tuple(
            (each, node.broker_epoch if each == node.node_id else partition.broker_epoch_of(each))
            for each in proposal.proposed
        )
        self.proposals.append(
            _Proposal(
                node.node_id,
                node.life,
                proposal,
                partition.leader_epoch,
                partition.partition_epoch,
                isr,
                node.broker_epoch,
            )
        )

    def _decide(self) -> None:
        """The controller answers a proposal, or its answer arrives."""
        if not self.proposals:
            return
        asked = self.random.choice(self.proposals)
        if asked.code is None:
            asked.code, asked.state = self._alter(asked), self.state
            if self.random.random() < 0.1:
                self.proposals.remove(asked)  # the answer is lost; the leader asks again
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

    def _ask_again(self, asked: _Proposal) -> None:
        node = self.nodes[asked.leader]
        if node.lives and node.life == asked.life and node.partition.isr_state is asked.proposal:
            self.propose(node)

    def _alter(self, asked: _Proposal) -> ErrorCode:
        """Kafka's checks in its order."""
        state = self.state
        if self.brokers.get(asked.leader, (-1, False))[0] != asked.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if asked.leader_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if asked.leader != state.leader:
            return ErrorCode.INVALID_REQUEST
        if asked.partition_epoch < state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        if any(self.brokers.get(each) != (epoch, True) for each, epoch in asked.isr):
            return ErrorCode.INELIGIBLE_REPLICA
        self._change(isr=tuple(each for each, _ in asked.isr))
        return ErrorCode.NONE

    # --- steps

    def _living(self) -> list[Broker]:
        return [node for node in self.nodes.values() if node.lives]

    def _learn(self) -> None:
        """A broker hears of the next change of the metadata, or of all."""
        node = self.random.choice(list(self.nodes.values()))
        if node.lives and node.images_seen < len(self.images):
            behind = len(self.images) - node.images_seen
            node.images_seen += self.random.choice((1, behind))
            node.partition.apply(self.images[node.images_seen - 1][0], node.node_id)

    def _apply_all(self, node: Broker) -> None:
        if node.images_seen < len(self.images):
            node.images_seen = len(self.images)
            node.partition.apply(self.images[-1][0], node.node_id)

    def _fetch(self) -> None:
        """A follower asks its leader."""
        node = self.random.choice(list(self.nodes.values()))
        if node.lives:
            fetching = node.next_fetch()
            if fetching is not None:
                self.fetches.append(fetching)

    def _answer(self) -> None:
        """A fetch arrives at the leader, or its answer at the follower: mostly the oldest."""
        if self.fetches:
            at = self.random.choice((0, 0, self.random.randrange(len(self.fetches))))
            self._go_on(self.fetches[at])

    def _go_on(self, fetching: Fetching) -> None:
        here, there = sorted((fetching.follower, fetching.leader))
        if self._silent == (here, there):
            return
        node, leader = self.nodes[fetching.follower], self.nodes[fetching.leader]
        if fetching.answer is None:
            if not leader.lives:
                self._lose_fetch(fetching)
                return
            fetching.answer = leader.serve(fetching)
            if not self._is_awaited(node, fetching):
                self.fetches.remove(fetching)  # it was given up; the leader has counted it all the same
            return
        self.fetches.remove(fetching)
        if self._is_awaited(node, fetching):
            code, answer, session_id = fetching.answer
            node.take(fetching, answer, session_id, code)

    def _is_awaited(self, node: Broker, fetching: Fetching) -> bool:
        return node.lives and node.life == fetching.life and node.fetching is fetching

    def _lose_fetch(self, fetching: Fetching) -> None:
        self.fetches.remove(fetching)
        node = self.nodes[fetching.follower]
        if self._is_awaited(node, fetching):
            node.break_off()

    def _lose(self) -> None:
        """A follower gives up a connection: what it has asked may still arrive."""
        if self.fetches:
            fetching = self.random.choice(self.fetches)
            node = self.nodes[fetching.follower]
            if self._is_awaited(node, fetching):
                node.break_off()
            if self.random.random() < 0.5 or fetching.answer is not None:
                self.fetches.remove(fetching)

    def _produce(self) -> None:
        """A producer sends its next batch, or the last one again, to whom it takes for the leader."""
        producer = self.random.choice((1, 2))
        batch = self.batches[producer]
        if batch is not None and batch.is_waiting:
            return
        if batch is None:
            values = []
            for _ in range(self.random.choice((1, 1, 3))):
                self._serial += 1
                values.append(b"%d:%d" % (producer, self._serial))
                self._sent[values[-1]] = None
            batch = _Batch(producer, self._sequences[producer], tuple(values))
            self._sequences[producer] += len(values)
            self.batches[producer] = batch
        leading = [node for node in self._living() if node.partition.is_leader]
        if leading:
            self._append(self.random.choice(leading), batch)

    def _append(self, node: Broker, batch: _Batch) -> None:
        """What the handler of Produce does with acks=all."""
        partition = node.partition
        if not partition.has_min_isr:
            return
        builder = RecordBatchBuilder(
            producer_id=batch.producer, producer_epoch=0, base_sequence=batch.sequence
        )
        for value in batch.values:
            builder.append(START_MS, None, value)
        try:
            result = partition.append_as_leader(memoryview(builder.build()), START_MS + self.now_ms)
        except KafkaError:
            return  # an earlier batch of this producer is missing here: this leader will not last
        batch.is_waiting = True
        if node.log.high_watermark > result.last_offset:
            self.settled(batch, result.base_offset)
        else:
            partition.wait_for_acks(_Waiter(self, batch, result.base_offset, result.last_offset))

    def settled(self, batch: _Batch, base_offset: int | None) -> None:
        """A producer hears of its batch: where it was acknowledged, or that it was not."""
        batch.is_waiting = False
        if base_offset is not None:
            self._promises.acknowledge(base_offset, batch.values)
            if self.batches[batch.producer] is batch:
                self.batches[batch.producer] = None

    def _time(self) -> None:
        """Time passes; leaders look who has lagged."""
        self.now_ms += self.random.choice((10, 100, 600, 1500))
        for node in self._living():
            if node.partition.is_leader:
                node.partition.look_again()
                node.partition.shrink_isr(self.now_ms)
        if self.random.random() < 0.3:
            for batch in self.batches.values():
                if batch is not None:
                    batch.is_waiting = False  # the producer's request has timed out: it sends again

    def _crash(self) -> None:
        self._kill(power=False)

    def _power(self) -> None:
        self._kill(power=True)

    def _kill(self, *, power: bool) -> None:
        """A process dies. Power fails only while another in-sync replica lives, and the controller knows at once."""
        node = self.random.choice(list(self.nodes.values()))
        if not node.lives:
            return
        others = [each for each in self.state.isr if each != node.node_id and self.nodes[each].lives]
        if power and (not others or self._has_lost_power(node)):
            return
        self.deaths += 1
        node.die(power=power)
        for fetching in [each for each in self.fetches if each.leader == node.node_id]:
            self._lose_fetch(fetching)
        if power or self.random.random() < 0.5:
            self._fence_broker(node.node_id)

    def _has_lost_power(self, node: Broker) -> bool:
        """Whether some in-sync replica other than this one's is dead: its page cache may be all that is left."""
        return any(not self.nodes[each].lives for each in self.state.isr if each != node.node_id)

    def _start(self) -> None:
        for node_id, node in self.nodes.items():
            if not node.lives and self.random.random() < 0.5:
                self._begin_life(node_id)

    def _elect(self) -> None:
        self._elect_someone()

    def _fence(self) -> None:
        """The controller loses sight of a broker that lives; it will be unfenced soon."""
        node = self.random.choice(self._living() or list(self.nodes.values()))
        if node.lives and len(self.state.isr) > 1:
            self._fence_broker(node.node_id)
            self.brokers[node.node_id] = (node.broker_epoch, True)
            self._tell()

    def _sync(self) -> None:
        node = self.random.choice(list(self.nodes.values()))
        if node.lives:
            node.log.flush()

    def _cut(self) -> None:
        """Two brokers do not hear each other for a while."""
        pair = sorted(self.random.sample(NODES, 2))
        self._silent = self.random.choice((None, (pair[0], pair[1])))

    # --- the end

    def _heal(self) -> None:
        """All live, all hear each other: the replicas must become equal and all be in sync."""
        self._silent = None
        for node_id, node in self.nodes.items():
            if not node.lives:
                self._begin_life(node_id)
        for _ in range(HEAL_ROUNDS_MAX):
            if self.state.leader < 0:
                self._elect_someone()
            for node in self.nodes.values():
                self._apply_all(node)
                fetching = node.next_fetch()
                if fetching is not None:
                    self.fetches.append(fetching)
            for fetching in list(self.fetches):
                if fetching in self.fetches:
                    self._go_on(fetching)
            self._decide()
            self.now_ms += 20
            self._promises.look(self._living())
            if self._is_whole():
                return
        logs = {
            node_id: (node.log.log_end_offset, node.log.high_watermark)
            for node_id, node in self.nodes.items()
        }
        raise SafetyViolation(f"the replicas do not come together: {self.state.isr} in sync, {logs}")

    def _is_whole(self) -> bool:
        leader = self.nodes.get(self.state.leader)
        if leader is None or not leader.partition.is_leader or sorted(self.state.isr) != list(NODES):
            return False
        end = leader.log.log_end_offset
        return all(
            node.log.log_end_offset == end and node.log.high_watermark == end for node in self.nodes.values()
        )
