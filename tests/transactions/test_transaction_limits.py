"""Limits of a coordinator: the size of a record, the memory for all ids, and the work of one decision."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

import attrs
import pytest

from odradek.data_plane.coordination.asking import Ask
from odradek.data_plane.transactions.counts import TransactionCounts
from odradek.data_plane.transactions.endings import completed, decided, fenced
from odradek.data_plane.transactions.machine import CHECKED_MAX, TransactionMachine
from odradek.data_plane.transactions.requests import (
    AbortTimedOut,
    AddPartitions,
    EndTransaction,
    ExpireIds,
    InitProducer,
)
from odradek.data_plane.transactions.state import (
    CHARACTERS_PER_WEIGHT,
    PARTITIONS_PER_WEIGHT,
    Transaction,
    TransactionsState,
    TransactionStatus,
    record_bytes_max,
    record_of,
)
from odradek.data_plane.transactions.transactions_topic import TransactionSettings
from odradek.metadata_quorum.state_machine import DecisionContext
from odradek.serving.layered_map import LayeredMap
from odradek.wire.errors import ErrorCode
from odradek.wire.record_batch import RecordBatchBuilder

CONTEXT = DecisionContext(0, 0, 0, 0, Random(1), lambda: bytes(16))
LATE_MS = 1_000_000
TIMEOUT_MS = 1_000


class Coordinator:
    """A state machine and its newest state."""

    def __init__(self, *, ids_max: int = 100_000, bytes_max: int = 1 << 20) -> None:
        ids = count()
        self.counts = TransactionCounts()
        self.bytes_max = bytes_max
        self.state = TransactionsState()
        self._machine = TransactionMachine(
            TransactionSettings(ids_per_partition_max=ids_max),
            lambda: next(ids),
            lambda: 1,
            self.counts,
            lambda: self.bytes_max,
        )

    def ask(self, request: Any, wall_ms: int = 0) -> Any:
        reply: Any = object()
        decision = self._machine.decide(self.state, Ask(request, 0, reply, wall_ms), CONTEXT)
        records: Any = decision.records
        self.state = self.state.replay(records)
        ((_, answer),) = decision.response
        return answer

    def begin(self, name: str) -> tuple[str, int, int]:
        """Initialize a producer. Return its transactional id, producer id and epoch."""
        begun = self.ask(InitProducer(name, TIMEOUT_MS))
        assert not begun.code
        return name, begun.producer_id, begun.producer_epoch

    def add(self, producer: tuple[str, int, int], partitions: int, *, first: int = 0) -> ErrorCode:
        added = frozenset(("t", index) for index in range(first, first + partitions))
        code: ErrorCode = self.ask(AddPartitions(*producer, added, 2))
        return code


def batch_bytes(transaction: Transaction, version: int) -> int:
    record = record_of(transaction, version)
    builder = RecordBatchBuilder(compression_type=0)
    builder.append(LATE_MS, record.encoded_key(), record.encoded_value())
    return len(builder.build())


@pytest.mark.parametrize("topics", [("t",), ("t" * 249, "u" * 249), tuple(f"топик-{n}" for n in range(40))])
@pytest.mark.parametrize("name", ["", "i", "i" * 300, "ы" * 9_000])
def test_no_later_record_is_larger_than_was_reckoned(name: str, topics: tuple[str, ...]) -> None:
    """The estimated size of a transaction's record is at least that of all its later records, in both versions."""
    partitions = frozenset((topic, 1 << index) for topic in topics for index in range(31))
    grown = Transaction(
        name, 1 << 60, 5, 60_000, TransactionStatus.ONGOING, partitions, 0, 0, client_version=2
    )
    grown = attrs.evolve(grown, previous_producer_id=1 << 59, last_producer_epoch=4)
    resumed = attrs.evolve(grown, next_producer_id=1 << 58, next_producer_epoch=7)
    most = record_bytes_max(grown)
    for each in (grown, resumed):
        ending = decided(each, TransactionStatus.PREPARE_COMMIT, 2, 1 << 57, LATE_MS)
        for later in (each, ending, fenced(each, LATE_MS), completed(ending, LATE_MS)):
            assert record_bytes_max(later) <= most
            for version in (0, 1):
                assert batch_bytes(later, version) <= most
    assert most - batch_bytes(grown, 1) < 100 + 6 * len(topics), "the reckoning wastes room"


def test_a_transaction_that_grows_too_large_is_refused_and_can_be_ended() -> None:
    """A transaction that would grow too large gets UNKNOWN_SERVER_ERROR, as in Kafka, and can still be ended."""
    coordinator = Coordinator(bytes_max=1_000)
    producer = coordinator.begin("a")
    assert coordinator.add(producer, 100) is ErrorCode.NONE
    assert coordinator.add(producer, 200, first=100) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert len(coordinator.state.transactions["a"].partitions) == 100
    assert coordinator.ask(InitProducer("i" * 1_000, TIMEOUT_MS)).code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert coordinator.counts.refused_partitions == 1
    coordinator.bytes_max = 100
    assert coordinator.add(producer, 100) is ErrorCode.NONE, "it has these already"
    assert coordinator.ask(EndTransaction(*producer, True, 2)).code is ErrorCode.NONE


@pytest.mark.reaches("transactions.new_id_refused", "transactions.partitions_refused")
def test_long_names_and_many_partitions_count_like_more_ids() -> None:
    """Long names and many partitions count as several ids. If the coordinator is full, small transactions go on."""
    coordinator = Coordinator(ids_max=10)
    coordinator.begin("i" * CHARACTERS_PER_WEIGHT * 7)
    small, large = coordinator.begin("small"), coordinator.begin("large")
    assert coordinator.state.weight == 10
    assert coordinator.ask(InitProducer("another", TIMEOUT_MS)).code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator.add(large, PARTITIONS_PER_WEIGHT) is ErrorCode.NONE
    more = coordinator.add(large, PARTITIONS_PER_WEIGHT, first=PARTITIONS_PER_WEIGHT)
    assert more is ErrorCode.COORDINATOR_NOT_AVAILABLE, "its producer asks again"
    assert coordinator.add(small, PARTITIONS_PER_WEIGHT - 1) is ErrorCode.NONE
    assert (coordinator.counts.refused_ids, coordinator.counts.refused_partitions) == (1, 1)
    assert coordinator.ask(EndTransaction(*small, True, 0)).code is ErrorCode.NONE


def late_state(number: int, partitions: int = 1) -> TransactionsState:
    written = frozenset(("t", index) for index in range(partitions))
    names = [f"{index:05}" for index in range(number)]
    found = {
        name: Transaction(name, index, 0, TIMEOUT_MS, TransactionStatus.ONGOING, written, 0, 0)
        for index, name in enumerate(names)
    }
    return TransactionsState(LayeredMap(found), LayeredMap(dict.fromkeys(names, 0)))


@pytest.mark.parametrize(("number", "partitions"), [(2 * CHECKED_MAX + 1, 1), (5, 1_000)])
def test_transactions_that_are_late_together_are_aborted_in_several_decisions(
    number: int, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If many transactions time out together, a decision aborts a limited number and reports that some are left."""
    if partitions > 1:
        monkeypatch.setattr("odradek.data_plane.transactions.machine.CHECKED_BYTES_MAX", 10_000)
    coordinator = Coordinator()
    coordinator.state = late_state(number, partitions)
    for last in (False, False, True):
        assert coordinator.ask(AbortTimedOut(LATE_MS), LATE_MS) is not last
    assert not coordinator.state.open
    assert {each.status for each in coordinator.state.transactions.values()} == {
        TransactionStatus.PREPARE_ABORT
    }
    assert coordinator.counts.timed_out == number


@pytest.mark.reaches("transactions.id_expired")
def test_ids_that_expire_together_are_forgotten_in_several_decisions() -> None:
    """KIP-98: unused ids expire in several decisions, however many there are."""
    coordinator = Coordinator()
    idle = {
        str(index): Transaction(str(index), index, 0, TIMEOUT_MS, last_update_ms=0)
        for index in range(CHECKED_MAX + 1)
    }
    coordinator.state = TransactionsState(LayeredMap(idle))
    expired_ms = 365 * 86_400_000
    assert coordinator.ask(ExpireIds(expired_ms), expired_ms) is True
    assert len(coordinator.state.transactions) == 1
    assert coordinator.ask(ExpireIds(expired_ms), expired_ms) is False
    assert not coordinator.state.transactions
