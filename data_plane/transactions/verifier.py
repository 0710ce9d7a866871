"""The requests of a partition's leader to the coordinators of transactions (KIP-890). Questions to one broker go
together. PORTED.

The coordinator may be this broker. Otherwise one request to it is under way at a time, and questions that come meanwhile
go out together in the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs

from odradek.data_plane.coordination.asking import Ask
from odradek.data_plane.ports import VerifiedPartition
from odradek.data_plane.transactions.peers import BrokerPeers, TransactionHost
from odradek.data_plane.transactions.requests import AddPartitions, Verified, VerifyPartitions
from odradek.env.ports import Event
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

TRANSACTIONS_PER_REQUEST = 500
ADDED_BY_BROKERS = 2
"""The client version of transactions whose partitions the brokers add."""

Codes = Mapping[VerifiedPartition, ErrorCode]


class Coordinators(Protocol):
    """The coordinators on this broker."""

    def partition_for(self, key: str) -> int | None: ...

    def submit(self, key: str, ask: Ask) -> None: ...


@attrs.define(eq=False)
class _Question:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[VerifiedPartition]
    adds: bool
    done: Event
    codes: Codes | None = None

    def complete(self, response: Any) -> None:
        """Store the answer of a coordinator on this broker."""
        if isinstance(response, Verified):
            codes = response.codes if not response.code else dict.fromkeys(self.partitions, response.code)
        else:
            codes = dict.fromkeys(self.partitions, response)
        self.answer(codes)

    def answer(self, codes: Codes) -> None:
        self.codes = codes
        self.done.set()

    def fail(self, code: ErrorCode) -> None:
        self.answer(dict.fromkeys(self.partitions, code))


class CoordinatorVerifier:
    """Asks the coordinators of transactions; implements `odradek.data_plane.ports.TransactionVerifier`."""

    def __init__(self, broker: TransactionHost, coordinators: Coordinators, peers: BrokerPeers) -> None:
        self._broker = broker
        self._coordinators = coordinators
        self._peers = peers
        self._queues: dict[int, deque[_Question]] = {}
        """The waiting questions, by broker. A broker has a queue while a request to it is under way."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[VerifiedPartition],
        *,
        adds: bool,
    ) -> Codes:
        """Ask the coordinators about partitions; see `TransactionVerifier.verify`."""
        question = _Question(
            transactional_id, producer_id, producer_epoch, partitions, adds, self._broker.env.event()
        )
        index = self._coordinators.partition_for(transactional_id)
        leader = None if index is None else self._peers.coordinator_of(index)
        if leader is None:
            question.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif leader == self._broker.node_id:
            self._ask_here(question)
        elif leader in self._queues:
            self._queues[leader].append(question)
        else:
            self._queues[leader] = deque((question,))
            self._broker.tasks.start_soon(self._ask_there, leader)
        if question.codes is None:
            # Serve woken requests: followers wait for the records that the coordinator has appended.
            self._broker.run_woken()
            await question.done.wait()
        assert question.codes is not None, "the check of a transaction ended without an answer"
        return question.codes

    def _ask_here(self, question: _Question) -> None:
        kind = VerifyPartitions if not question.adds else AddPartitions
        values = (
            question.transactional_id,
            question.producer_id,
            question.producer_epoch,
            frozenset(question.partitions),
        )
        request = (
            AddPartitions(*values, ADDED_BY_BROKERS) if kind is AddPartitions else VerifyPartitions(*values)
        )
        now_ms = self._broker.agreed_clock.latest_ms()
        self._coordinators.submit(question.transactional_id, Ask(request, 0, question, now_ms))

    async def _ask_there(self, leader: int) -> None:
        queue = self._queues[leader]
        while queue:
            questions = _take(queue)
            request = AddPartitionsToTxnRequest([_described(each) for each in questions])
            code, response = await self._peers.ask(leader, request)
            if not code:
                code = ErrorCode(response.error_code)
            results = (
                {} if code else {each.transactional_id: each for each in response.results_by_transaction}
            )
            for question in questions:
                result = results.get(question.transactional_id)
                if result is None:
                    question.fail(code or ErrorCode.NETWORK_EXCEPTION)
                    continue
                codes = {
                    (topic.name, each.partition_index): ErrorCode(each.partition_error_code)
                    for topic in result.topic_results
                    for each in topic.results_by_partition
                }
                question.answer(
                    {each: codes.get(each, ErrorCode.NETWORK_EXCEPTION) for each in question.partitions}
                )
        del self._queues[leader]


def _take(queue: deque[_Question]) -> list[_Question]:
    """Remove and return the next questions, at most one of each transactional id, because answers are matched by
    that id.
    """
    taken: dict[str, _Question] = {}
    while queue and len(taken) < TRANSACTIONS_PER_REQUEST and queue[0].transactional_id not in taken:
        question = queue.popleft()
        taken[question.transactional_id] = question
    return list(taken.values())


def _described(question: _Question) -> AddPartitionsToTxnTransaction:
    topics: dict[str, list[int]] = {}
    for topic, index in question.partitions:
        topics.setdefault(topic, []).append(index)
    return AddPartitionsToTxnTransaction(
        question.transactional_id,
        question.producer_id,
        question.producer_epoch,
        not question.adds,
        [AddPartitionsToTxnTopic(topic, indexes) for topic, indexes in topics.items()],
    )
