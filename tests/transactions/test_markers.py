"""Markers that a broker writes itself: a large transaction leaves other clients their turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from data_plane.transactions.markers import PARTITIONS_PER_TURN, MarkerSender
from data_plane.transactions.state import Transaction, TransactionStatus
from wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

NODE = 1


class Loop:
    """A broker that leads all partitions. Each timer's action is a turn."""

    def __init__(self) -> None:
        self.node_id = NODE
        self.woken: deque[Callable[[], None]] = deque()
        self.turns: deque[Callable[[], Any]] = deque()
        self.written: list[int] = [0]
        """Markers written in each turn."""
        self.clock = SimpleNamespace(monotonic=lambda: 0.0, wall_ms=lambda: 0)
        self.timers = SimpleNamespace(at=lambda deadline, action: self.turns.append(action))
        self.newest = SimpleNamespace(
            image=SimpleNamespace(partition=lambda topic, index: SimpleNamespace(leader=NODE))
        )

    def write(self, request: WriteTxnMarkersRequest, done: Callable[[WriteTxnMarkersResponse], None]) -> None:
        results = []
        for marker in request.markers:
            topics = []
            for topic in marker.topics:
                self.written[-1] += len(topic.partition_indexes)
                codes = [WritableTxnMarkerPartitionResult(index, 0) for index in topic.partition_indexes]
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
            self.turns.popleft()()


class Shard:
    """A coordinator that counts the ends that it is told."""

    leader_epoch = 0
    is_stopped = False

    def __init__(self) -> None:
        self.told = 0

    def submit(self, ask: Any) -> None:
        self.told += 1

    def has_completed(self, transaction: Transaction) -> bool:
        return self.told > 0


def end(partition_count: int) -> tuple[Loop, Shard, MarkerSender]:
    """Commit a transaction that has so many partitions on this broker."""
    loop, shard = Loop(), Shard()
    sender = MarkerSender(loop, None)  # type: ignore[arg-type]
    sender.write_here = loop.write
    partitions = frozenset(("t", index) for index in range(partition_count))
    sender.begin(shard, Transaction("id", 7, 0, 1000, TransactionStatus.PREPARE_COMMIT, partitions))
    loop.run()
    return loop, shard, sender


def test_one_turn_writes_few_of_the_markers_of_a_large_transaction() -> None:
    """Other clients are served between two parts; every partition gets one marker."""
    loop, shard, sender = end(10_000)
    assert max(loop.written) == PARTITIONS_PER_TURN
    assert sum(loop.written) == 10_000
    assert shard.told == 1
    assert sender.statistics() == {"ending": 0}


def test_a_small_transaction_ends_in_one_turn() -> None:
    """Its producer waits for no timer."""
    loop, shard, _ = end(PARTITIONS_PER_TURN)
    assert loop.written == [PARTITIONS_PER_TURN]
    assert shard.told == 1
