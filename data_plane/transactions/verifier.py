"""Requests of partition leaders to transaction coordinators, to verify or add partitions (KIP-890). PORTED.

The coordinator may be on this broker. Otherwise, questions are sent to the coordinator's broker, in one
request at a time. Questions that arrive meanwhile are sent together in the next request.
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
"""The transaction version of clients that do not add partitions to their transactions themselves. The brokers
add the partitions for these clients.
"""

Codes = Mapping[VerifiedPartition, ErrorCode]


class Coordinators(Protocol):
    """The transaction coordinators on this broker."""

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
        """Called with the answer of a coordinator on this broker: a `Verified`, or an error code."""
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
    """The sender of verifications to transaction coordinators; implements
    `odradek.data_plane.ports.TransactionVerifier`.
    """

    def __init__(self, broker: TransactionHost, coordinators: Coordinators, peers: BrokerPeers) -> None:
        self._broker = broker
        self._coordinators = coordinators
        self._peers = peers
        self._queues: dict[int, deque[_Question]] = {}
        """The questions that wait for the next request, by broker. A broker has a queue exactly while a
        request to it is under way.
        """

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[VerifiedPartition],
        *,
        adds: bool,
    ) -> Codes:
        """Ask the transaction's coordinator about the partitions; see `TransactionVerifier.verify`.

        Returns an error code for each partition.
        """
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
            # Followers may wait for the records that the coordinator on this broker has just appended, so
            # serve their fetches.
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
    """Remove and return the next questions for one request.

    Each transactional id occurs only once, because answers are matched by it.
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
