"""Schedules for a transaction coordinator, drawn from a seed: its state machine, log and markers on a partition with
three replicas. PURE.

The coordinator's partition is simulated as in `sim.alone.replication_alone`: late fetches, crashes, power losses,
elections, truncation. Each broker has a `TransactionCoordinator`, which starts a shard and loads the log when the
broker becomes the leader. Producers of both transaction protocols write to two data partitions, whose leaders change
or are missing for a while. These leaders verify transactions with the coordinator and receive its markers. Requests
and markers arrive late, even after their senders have stopped waiting. Producers crash, and other producers take over
their transactional ids. An intruder uses the same producer ids with another transactional id.

At the end all faults are healed, and time advances until abandoned transactions are aborted. Then each transaction
must be in the partitions completely or not at all, as the outcome that its producer learned demands. Each value must
occur at most once, and all transactions must have ended (`ledger.py`). A producer that repeats InitProducerId is not fenced by itself (`repeated_inits.py`). At every step the markers of a producer have
non-decreasing coordinator epochs, and the coordinator's records obey the laws. A new leader of a data partition has the same producer state as the leader before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random

import attrs

from odradek.data_plane.log.partition_log import PartitionLog
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.coordinator_records import TransactionLogKey, TransactionLogValue
from odradek.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from odradek.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from sim.alone.coordinator_run import CoordinatorRun, draw_partition
from sim.alone.logged_records import decoded, logged_records
from sim.alone.replication_alone import ReplicationPlan
from sim.alone.replication_broker import START_MS, Broker
from sim.alone.replication_checks import Promises
from sim.alone.transactions.ledger import Ledger, Outcome
from sim.alone.transactions.producers import Called, Producers, Surroundings, ask_of
from sim.alone.transactions.transaction_host import Ids, Letter, Post, TransactionHost
from sim.alone.transactions.written_partition import NOBODY, TOPIC, WrittenPartition
from sim.checks.folds.transaction_laws import judge_transaction
from sim.history import SafetyViolation

__all__ = ["TransactionsPlan", "run"]

STEPS_DEFAULT = 1500
SETTLE_ROUNDS_MAX = 1500
PARTITIONS = 2
REPEATS = 0.4
_WEIGHTS: Mapping[str, tuple[float, ...]] = {
    "fetch": (8.0, 14.0),
    "answer": (8.0, 14.0),
    "learn": (2.0, 6.0),
    "flow": (10.0, 20.0, 40.0),
    "go_on": (30.0, 50.0),
    "call": (12.0, 20.0),
    "letter": (6.0, 12.0),
    "work": (10.0, 20.0),
    "begin": (0.5, 1.0),
    "decide": (2.0, 4.0),
    "time": (0.5, 1.5),
    "forget": (0.0, 0.5, 1.5),
    "kill_producer": (0.0, 0.2),
    "move": (0.0, 0.5, 1.5),
    "intrude": (0.0, 1.0, 3.0),
    "hear": (0.5, 2.0),
    "lose": (0.0, 0.5),
    "crash": (0.0, 0.3, 0.6),
    "power": (0.0, 0.3, 0.6),
    "stop": (0.0, 0.3),
    "start": (2.0,),
    "elect": (0.0, 0.5, 1.5),
    "fence": (0.0, 0.3),
    "sync": (0.0, 1.0),
    "cut": (0.0, 0.3),
}


@attrs.frozen
class TransactionsPlan:
    """Parameters of a schedule: the plan of the coordinator's partition, and the weights of the producers' steps."""

    partition: ReplicationPlan
    repeats: float = 0.0
    """The probability that a producer sends InitProducerId between two transactions, and the probability that it loses the
    answer.
    """

    @classmethod
    def draw(cls, random: Random, steps: int = STEPS_DEFAULT) -> TransactionsPlan:
        """Draw a plan. Independently of the others, each kind of step is rare, common or absent (swarm testing)."""
        return cls(draw_partition(random, steps, _WEIGHTS))


class _StateLog(Promises):
    """Check that all replicas of the coordinator's log are equal, and that its committed records obey the laws of
    `sim.checks.folds.transaction_laws`. Unlike producers' records, two records of this log may have the same value.
    """

    def __init__(self, min_isr: int) -> None:
        super().__init__(min_isr)
        self._read_to = 0
        self._values: dict[str, TransactionLogValue | None] = {}

    def _contents(self, log: PartitionLog, start: int, end: int) -> dict[int, bytes]:
        return {offset: record.data for offset, record in logged_records(log, start, end).items()}

    def look(self, living: Iterable[Broker]) -> None:
        """Check the replicas, and judge newly committed records."""
        super().look(living)
        while self._read_to in self._seen:
            key, value = decoded(self._seen[self._read_to], "transaction")
            self._read_to += 1
            if isinstance(key, TransactionLogKey):
                assert value is None or isinstance(value, TransactionLogValue)
                judge_transaction(key.transactional_id, self._values.get(key.transactional_id), value)
                self._values[key.transactional_id] = value

    def check(self, nodes: Mapping[int, Broker]) -> None:
        self._check_replicas(nodes)


def run(seed: int, plan: TransactionsPlan | None = None) -> Mapping[str, int]:
    """Run one schedule, and return counts of its events, each with a name. Raises `SafetyViolation`, and the product's
    exceptions.
    """
    random = Random(f"{seed}/transactions")
    if plan is None:
        # The repetitions are drawn apart, so that schedules without them stay as they were.
        repeats = 0.0 if Random(f"{seed}/repeats").random() < 0.5 else REPEATS
        plan = attrs.evolve(TransactionsPlan.draw(random), repeats=repeats)
    return _Run(plan, random).run()


class _Run(CoordinatorRun[TransactionHost]):
    """One run of a schedule: brokers with transaction coordinators, producers, and the partitions that the producers
    write.
    """

    def __init__(self, plan: TransactionsPlan, random: Random) -> None:
        self._partitions = [WrittenPartition(index) for index in range(PARTITIONS)]
        self._post = Post()
        self._ids = Ids()
        self._ledger = Ledger()
        self._given: list[Called] = []
        """Requests that have reached a coordinator and may not be answered yet."""
        super().__init__(plan.partition, random)
        self._around = Surroundings(
            random,
            self._hosts,
            self._partitions,
            self._ledger,
            lambda: self.now_ms,
            self._coordinator,
            plan.repeats,
        )
        self._transactional = Producers(self._around)

    def run(self) -> Mapping[str, int]:
        """Run the schedule, and return counts of its events, each with a name."""
        self._transactional.begin()
        try:
            return super().run()
        finally:
            self._transactional.close()

    def _new_promises(self) -> Promises:
        return _StateLog(self.plan.min_isr)

    def _told(self) -> Mapping[str, int]:
        return {
            "committed": self._ledger.told(Outcome.COMMITTED),
            "aborted": self._ledger.told(Outcome.ABORTED),
            "unknown": self._ledger.told(Outcome.TRIED),
            "repeated": self._around.inits.seen,
            "markers": sum(each.markers for each in self._partitions),
            "epochs": self._controller.state.leader_epoch,
            "deaths": self.deaths,
        }

    # -- brokers --------------------------------------------------------------------------------------------------

    def _new_host(self, node: Broker) -> TransactionHost:
        return TransactionHost(node, self._partitions, self._post, self._ids, lambda: self.now_ms)

    def _bury(self) -> None:
        """Remove the hosts of brokers whose processes have ended, and end the requests that they had received."""
        super()._bury()
        for called in self._given:
            if called.node_id not in self._hosts:
                called.is_over = True
        self._given = [called for called in self._given if not called.is_over]

    # -- steps ----------------------------------------------------------------------------------------------------

    def _coordinator(self) -> object:
        host = self._hosts.get(self._controller.state.leader)
        return None if host is None else host.shard

    def _produce(self) -> None:
        """Do nothing: only the coordinator appends to its log."""

    def _fetch(self) -> None:
        """Let a random follower fetch. In 70 % of the calls let all followers fetch, and deliver the answers, so that
        appends are committed quickly.
        """
        super()._fetch()
        if self.random.random() < 0.7:
            for node in self._living():
                self._fetches.ask(node)
            self._fetches.deliver_all()
            for host in list(self._hosts.values()):
                host.run_woken()

    def _go_on(self) -> None:
        self._transactional.go_on()

    def _flow(self) -> None:
        """Step every producer and every coordinator, and deliver all requests that are on their way."""
        self._transactional.go_on_all()
        for _ in range(len(self._around.calls)):
            self._call()
        for _ in range(len(self._post.letters)):
            self._letter()
        for host in list(self._hosts.values()):
            host.work(self.random)

    def _begin(self) -> None:
        if self._transactional.at_work < 4:
            self._transactional.begin()

    def _intrude(self) -> None:
        self.random.choice(self._partitions).intrude(self.random, self.now_ms)

    def _kill_producer(self) -> None:
        self._transactional.kill_one()

    def _call(self) -> None:
        """Deliver a random producer's request to its coordinator."""
        calls = self._around.calls
        if not calls:
            return
        called = calls.pop(self.random.randrange(len(calls)))
        host = self._hosts.get(called.node_id)
        if host is None:
            called.is_over = True
            return
        if called.is_over and not called.may_come_late:
            return
        self._given.append(called)
        if host.shard is not None and not host.shard.is_loading:
            self._around.inits.arrived(called.request, self.now_ms)
        host.coordinator.submit("id", ask_of(called, START_MS + self.now_ms))
        host.run_woken()
        if self.random.random() < 0.5:
            self._fetch()

    def _letter(self) -> None:
        """Deliver a random request of a coordinator to the leader of a data partition."""
        letters = self._post.letters
        if letters:
            self._deliver(letters.pop(self.random.randrange(len(letters))))

    def _deliver(self, letter: Letter) -> None:
        answer = self._answer_to(letter)
        if letter.is_awaited and self.random.random() < 0.9:
            letter.answer = answer
        letter.is_over = True

    def _answer_to(self, letter: Letter) -> WriteTxnMarkersResponse | DescribeProducersResponse:
        request = letter.request
        if isinstance(request, DescribeProducersRequest):
            return DescribeProducersResponse(
                topics=[
                    TopicResponse(
                        topic.name, [self._described(letter.to, index) for index in topic.partition_indexes]
                    )
                    for topic in request.topics
                ]
            )
        assert isinstance(request, WriteTxnMarkersRequest)
        results = []
        for marker in request.markers:
            indexes = [index for topic in marker.topics for index in topic.partition_indexes]
            written = [
                WritableTxnMarkerPartitionResult(
                    index,
                    self._partitions[index].write_marker(marker)
                    if self._partitions[index].leader == letter.to
                    else ErrorCode.NOT_LEADER_OR_FOLLOWER,
                )
                for index in indexes
            ]
            results.append(
                WritableTxnMarkerResult(marker.producer_id, [WritableTxnMarkerTopicResult(TOPIC, written)])
            )
        return WriteTxnMarkersResponse(results)

    def _described(self, to: int, index: int) -> PartitionResponse:
        partition = self._partitions[index]
        if partition.leader != to:
            return PartitionResponse(index, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return PartitionResponse(
            index,
            active_producers=[
                ProducerState(producer_id=each, current_txn_start_offset=0)
                for each in partition.open_producers()
            ],
        )

    def _forget(self) -> None:
        """Let a random sender stop waiting. Its request is lost, or may still arrive."""
        waiting = [each for each in self._post.letters if each.is_awaited]
        calls = [each for each in self._around.calls if not each.is_over]
        if waiting and self.random.random() < 0.5:
            letter = self.random.choice(waiting)
            letter.is_awaited, letter.is_over = False, True
            if self.random.random() < 0.5:
                self._post.letters.remove(letter)
        elif calls:
            called = self.random.choice(calls)
            called.is_over = True
            if self.random.random() < 0.5:
                self._around.calls.remove(called)

    def _move(self) -> None:
        """Give a random data partition another leader, or none for a while."""
        partition = self.random.choice(self._partitions)
        partition.move(self.random.choice((NOBODY, 11, 12, 13)))

    def _hear(self) -> None:
        """Update the metadata of a random broker to the present leaders of the data partitions."""
        if self._hosts:
            self.random.choice(list(self._hosts.values())).learn()

    def _time(self) -> None:
        super()._time()
        self._fire()

    def _fire(self) -> None:
        for host in list(self._hosts.values()):
            host.timers.fire_due(host.clock.monotonic())
            host.run_woken()

    # -- the end of a schedule ------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Heal the replicas. Then step until all transactions have ended, and check their outcomes."""
        super()._heal()
        self._around.is_calm = True
        for partition in self._partitions:
            if partition.leader < 0:
                partition.move(11 + partition.index)
        for _ in range(SETTLE_ROUNDS_MAX):
            for host in list(self._hosts.values()):
                host.learn()
                for _ in range(4):
                    host.work(self.random)
            self._transactional.go_on_all()
            while self._around.calls:
                self._call()
            while self._post.letters:
                self._letter()
            self._replicate()
            self._fire()
            self.now_ms += 50
            if self._is_settled():
                break
        else:
            raise SafetyViolation(
                f"transactions do not come to their end in a healed cluster: {self._unsettled()}"
            )
        for _ in range(20):
            self._replicate()
        self._ledger.check([each.read() for each in self._partitions])

    def _replicate(self) -> None:
        super()._replicate()
        for host in list(self._hosts.values()):
            host.run_woken()

    def _is_settled(self) -> bool:
        return not self._unsettled() and not self._transactional.at_work

    def _unsettled(self) -> str:
        shard = self._hosts[self._controller.state.leader].shard
        state = None if shard is None else shard.state
        if state is None:
            return "nobody coordinates"
        for each in state.transactions.values():
            if each.status.is_ending or each.transactional_id in state.open:
                return f"{each.transactional_id} is in {each.status.shown}"
        return ""
