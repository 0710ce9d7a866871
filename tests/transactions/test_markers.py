"""Markers that a broker writes itself. During a large transaction other clients still get their turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from odradek.data_plane.transactions.coordinator import IDS_PER_TURN, TransactionShard
from odradek.data_plane.transactions.markers import (
    ENDS_PER_TURN,
    PARTITIONS_PER_TURN,
    STARTS_PER_TURN,
    MarkerSender,
)
from odradek.data_plane.transactions.state import Transaction, TransactionsState, TransactionStatus
from odradek.env.agreed_clock import AgreedClock
from odradek.serving.layered_map import LayeredMap
from odradek.wire.errors import ErrorCode
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

NODE = 1
LOADED_END = 7


class Loop:
    """A broker that leads all partitions. Each run of a timer's action is a turn of its loop."""

    def __init__(self) -> None:
        self.node_id = NODE
        self.woken: deque[Callable[[], None]] = deque()
        self.turns: deque[Callable[[], Any]] = deque()
        self.written: list[int] = [0]
        """How many markers each turn has written."""
        self.begins: Callable[[], Any] = lambda: None
        """Called at the beginning of each turn."""
        self.routed: list[int] = [0]
        """How many partitions' leaders each turn has looked up."""
        self.clock: Any = SimpleNamespace(monotonic=lambda: 0.0, wall_ms=lambda: 0)
        self.agreed_clock = AgreedClock(self.clock)
        self.timers = SimpleNamespace(
            at=lambda deadline, action: self.turns.append(action), next_turn=self.turns.append
        )
        self.newest = SimpleNamespace(image=SimpleNamespace(partition=self.partition))

        self.codes: dict[int, ErrorCode] = {}
        """The errors of partitions that refuse their markers."""
        self.log = SimpleNamespace(warning=lambda event, **fields: self.lines.append((event, fields)))
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.open_at: dict[int, int] = {}
        """The partitions on which producer 7 has an open transaction, with the offset where it begins."""
        self.lost = 0
        """How many answers to DescribeProducers get lost."""
        self.denied = ErrorCode.NONE
        """The error that each partition returns to DescribeProducers."""
        self.looked = 0
        self.tasks = SimpleNamespace(start_soon=self.start)

    def start(self, task: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Run a task that never waits."""
        with pytest.raises(StopIteration):
            task(*arguments).send(None)

    def run_woken(self) -> None:
        """Do nothing: `run` calls the woken callbacks."""

    async def ask(self, leader: int, request: DescribeProducersRequest) -> tuple[ErrorCode, Any]:
        self.looked += 1
        if self.looked <= self.lost:
            return ErrorCode.NETWORK_EXCEPTION, None
        (topic,) = request.topics
        described = [
            PartitionResponse(
                index,
                self.denied,
                None,
                []
                if self.denied
                else [ProducerState(7, 9, 0, 0, 0, self.open_at.get(index, -1)), ProducerState(8)],
            )
            for index in topic.partition_indexes
        ]
        return ErrorCode.NONE, DescribeProducersResponse(0, [TopicResponse(topic.name, described)])

    def partition(self, topic: str, index: int) -> Any:
        self.routed[-1] += 1
        return SimpleNamespace(leader=NODE)

    def write(self, request: WriteTxnMarkersRequest, done: Callable[[WriteTxnMarkersResponse], None]) -> None:
        results = []
        for marker in request.markers:
            topics = []
            for topic in marker.topics:
                self.written[-1] += len(topic.partition_indexes)
                codes = [
                    WritableTxnMarkerPartitionResult(index, self.codes.get(index, ErrorCode.NONE))
                    for index in topic.partition_indexes
                ]
                topics.append(WritableTxnMarkerTopicResult(topic.name, codes))
            results.append(WritableTxnMarkerResult(marker.producer_id, topics))
        done(WriteTxnMarkersResponse(results))

    def run(self) -> None:
        while True:
            while self.woken:
                self.woken.popleft()()
            if not self.turns:
                return
            self.written.append(0)
            self.routed.append(0)
            self.begins()
            self.turns.popleft()()


class Shard:
    """A coordinator that counts the transactions whose end is reported to it."""

    leader_epoch = 0
    is_stopped = False

    def __init__(self) -> None:
        self.completed: list[str] = []
        self.spent: list[bool] = []

    @property
    def told(self) -> int:
        return len(self.completed)

    def submit(self, ask: Any) -> None:
        self.completed.append(ask.request.transactional_id)
        self.spent.append(ask.request.is_spent)

    def has_completed(self, transaction: Transaction) -> bool:
        return self.completed[-1] == transaction.transactional_id


def end(
    partition_count: int,
    refused: dict[int, ErrorCode] | None = None,
    open_at: dict[int, int] | None = None,
    lost: int = 0,
    denied: ErrorCode = ErrorCode.NONE,
) -> tuple[Loop, Shard, MarkerSender]:
    """Commit a transaction that has `count` partitions on this broker."""
    loop, shard = Loop(), Shard()
    loop.codes, loop.open_at, loop.lost, loop.denied = refused or {}, open_at or {}, lost, denied
    sender = MarkerSender(loop, loop, loop.write)  # type: ignore[arg-type]
    partitions = frozenset(("t", index) for index in range(partition_count))
    sender.begin(shard, Transaction("id", 7, 0, 1000, TransactionStatus.PREPARE_COMMIT, partitions))
    loop.run()
    return loop, shard, sender


def test_one_turn_writes_few_of_the_markers_of_a_large_transaction() -> None:
    """A turn writes a few markers of a large transaction. Other clients are served between turns."""
    loop, shard, sender = end(10_000)
    assert max(loop.written) == PARTITIONS_PER_TURN
    assert sum(loop.written) == 10_000
    assert shard.told == 1
    assert sender.statistics() == {"ending": 0}


def test_a_small_transaction_ends_in_one_turn() -> None:
    """A small transaction ends in one turn, so that its producer waits for no timer."""
    loop, shard, _ = end(PARTITIONS_PER_TURN)
    assert loop.written == [PARTITIONS_PER_TURN]
    assert shard.told == 1


@pytest.mark.parametrize("is_open", [False, True])
def test_a_partition_that_knows_a_higher_producer_epoch_is_looked_at(is_open: bool) -> None:
    """A partition that knows a higher producer epoch is described. If it has no open transaction, its marker is left
    out."""
    refused = dict.fromkeys((1, 2), ErrorCode.INVALID_PRODUCER_EPOCH)
    loop, shard, sender = end(4, refused, open_at={2: 40} if is_open else {})
    assert shard.spent == ([] if is_open else [True])
    assert sender.statistics() == {"ending": 0}
    told = [(event, fields["partition"], fields.get("error")) for event, fields in loop.lines]
    spent = [("transactions.producer_id_spent", 1, None)]
    assert told == spent + [("transactions.marker_refused", 2, "INVALID_PRODUCER_EPOCH")] * is_open


@pytest.mark.reaches("transactions.marker_given_up")
def test_a_partition_that_may_not_be_looked_at_is_left_alone() -> None:
    """If this broker may not READ the topic, the transaction stays in PrepareCommit, as in Kafka."""
    loop, shard, sender = end(
        4, {1: ErrorCode.INVALID_PRODUCER_EPOCH}, denied=ErrorCode.TOPIC_AUTHORIZATION_FAILED
    )
    assert (loop.looked, shard.told) == (1, 0)
    assert sender.statistics() == {"ending": 0}


def test_a_partition_that_is_not_described_is_asked_again() -> None:
    """If the answer to DescribeProducers is lost, the marker is written and refused once more, and the partition
    described."""
    loop, shard, sender = end(4, {1: ErrorCode.INVALID_PRODUCER_EPOCH}, lost=3)
    assert (loop.looked, shard.spent) == (4, [True])
    assert sender.statistics() == {"ending": 0}


def test_a_fenced_coordinator_leaves_the_transaction_to_another() -> None:
    """After TRANSACTION_COORDINATOR_FENCED, this coordinator reports no end, since a newer one writes the markers."""
    loop, shard, sender = end(
        4, {1: ErrorCode.INVALID_PRODUCER_EPOCH, 2: ErrorCode.TRANSACTION_COORDINATOR_FENCED}
    )
    assert shard.told == 0
    assert sender.statistics() == {"ending": 0}
    assert loop.lines[-1][1]["error"] == "TRANSACTION_COORDINATOR_FENCED"


def test_a_transaction_that_the_end_of_the_last_one_decides_gets_its_markers() -> None:
    """If the decision that completes a transaction also begins and aborts the next one, the markers of both are
    written."""
    first = Transaction("id", 7, 1, 1000, TransactionStatus.PREPARE_COMMIT, frozenset({("t", 0)}))
    second = Transaction("id", 7, 2, 1000, TransactionStatus.PREPARE_ABORT, frozenset({("t", 1)}))
    loop = Loop()
    sender = MarkerSender(loop, loop, loop.write)  # type: ignore[arg-type]

    class Deciding(Shard):
        """A coordinator whose decisions are committed at once, since it is alone in its ISR."""

        def submit(self, ask: Any) -> None:
            super().submit(ask)
            if self.told == 1:
                sender.begin(self, second)

    shard = Deciding()
    sender.begin(shard, first)
    loop.run()
    assert (sum(loop.written), shard.told) == (2, 2)
    assert sender.statistics() == {"ending": 0}


def prepared(count: int) -> TransactionsState:
    """Return `count` decided transactions of one partition each, and as many idle ids."""
    transactions = {}
    for number in range(count):
        name = f"{number:06}"
        place = frozenset({("t", number % 50)})
        transactions[name] = Transaction(name, number, 0, 1000, TransactionStatus.PREPARE_COMMIT, place)
        transactions[f"idle {name}"] = Transaction(f"idle {name}", count + number, 0, 1000)
    return TransactionsState(LayeredMap(transactions))


class Beginning(TransactionShard):
    """A coordinator that is starting, over a log that ends at `LOADED_END`."""

    def __init__(self, loop: Loop, sender: MarkerSender, high_watermark: int = LOADED_END) -> None:
        self._broker = loop  # type: ignore[assignment]
        self._markers = sender
        self._stopped = False
        self.leader_epoch = 0
        self._runtime = SimpleNamespace(  # type: ignore[assignment]
            subscribe=lambda observer: None, committed_end=LOADED_END
        )
        self.listeners: list[Callable[[int], None]] = []
        self._log = SimpleNamespace(  # type: ignore[assignment]
            subscribe=self.listeners.append, high_watermark=high_watermark
        )

    def submit(self, ask: Any) -> None:
        """Decide nothing."""

    def has_completed(self, transaction: Transaction) -> bool:
        return True


def test_a_coordinator_that_begins_sends_no_marker_of_what_may_be_lost() -> None:
    """A new coordinator sends no marker for a decision above the high watermark, since the decision may still be
    lost."""
    loop = Loop()
    sender = MarkerSender(loop, loop, loop.write)  # type: ignore[arg-type]
    shard = Beginning(loop, sender, LOADED_END - 1)
    shard.began(prepared(3))
    loop.run()
    assert sum(loop.written) == 0
    for listener in shard.listeners:
        listener(LOADED_END)
        listener(LOADED_END + 1)
    loop.run()
    assert sum(loop.written) == 3


def test_a_coordinator_that_begins_completes_many_transactions_a_few_in_each_turn() -> None:
    """After a load with 100,000 transactions in PrepareCommit, no turn is long, and each transaction ends once."""
    count = 100_000
    loop, ends = Loop(), Shard()
    sender = MarkerSender(loop, None, loop.write)  # type: ignore[arg-type]
    begun = [0]
    told = [0]

    class Counted(Beginning):
        """Counts how often each transaction's end is reported."""

        def submit(self, ask: Any) -> None:
            told[-1] += 1
            ends.submit(ask)

        def has_completed(self, transaction: Transaction) -> bool:
            return ends.has_completed(transaction)

    begin = sender.begin

    def counted_begin(shard: Any, transaction: Transaction) -> None:
        begun[-1] += 1
        begin(shard, transaction)

    sender.begin = counted_begin  # type: ignore[method-assign]
    loop.begins = lambda: (begun.append(0), told.append(0))
    Counted(loop, sender).began(prepared(count))
    loop.run()
    assert max(begun) <= IDS_PER_TURN
    assert max(loop.routed) <= STARTS_PER_TURN
    assert max(loop.written) <= PARTITIONS_PER_TURN
    assert max(told) <= ENDS_PER_TURN
    assert sorted(ends.completed) == [f"{number:06}" for number in range(count)]
    assert sender.statistics() == {"ending": 0}
