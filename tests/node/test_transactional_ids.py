"""The limit of transactional ids of one coordinator (ours: Kafka has none), by its machine alone."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

from data_plane.coordination.asking import Ask
from data_plane.transactions.counts import TransactionCounts
from data_plane.transactions.machine import TransactionMachine
from data_plane.transactions.requests import InitProducer
from data_plane.transactions.state import TransactionsState
from data_plane.transactions.transactions_topic import TransactionSettings
from metadata_quorum.state_machine import DecisionContext
from wire.errors import ErrorCode


def test_a_coordinator_that_is_full_takes_no_new_id() -> None:
    """COORDINATOR_NOT_AVAILABLE, after which clients ask again; ids that it has go on."""
    counts = TransactionCounts()
    ids = count()
    settings = TransactionSettings(ids_per_partition_max=1)
    machine = TransactionMachine(settings, lambda: next(ids), lambda: 1, counts)
    state = TransactionsState()
    context = DecisionContext(0, 0, 0, 0, Random(1), lambda: bytes(16))
    codes = []
    for name in ("a", "b", "a"):
        reply: Any = object()
        decision = machine.decide(state, Ask(InitProducer(name, 1_000), 0, reply, 0), context)
        records: Any = decision.records
        state = state.replay(records)
        (answer,) = decision.response
        codes.append(answer[1].code)
    assert codes == [ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE]
    assert (counts.refused_ids, len(state.transactions)) == (1, 1)
