"""Handlers of DescribeTransactions and ListTransactions (KIP-664), for the transactional ids that this broker
coordinates.
"""

from __future__ import annotations

from odradek.data_plane.coordination.asking import Ask
from odradek.data_plane.coordination.shards import DECISION_UNITS
from odradek.data_plane.handlers.desk import Desk
from odradek.data_plane.transactions.coordinator import TransactionCoordinator
from odradek.data_plane.transactions.requests import DescribeTransaction, ListTransactions
from odradek.data_plane.transactions.state import Transaction, TransactionsState, TransactionStatus
from odradek.serving.answer_size import TOO_LARGE, RepeatedSize
from odradek.serving.contract import Context, Result
from odradek.serving.patterns import is_pattern, matching_names
from odradek.serving.steps import Answers, Steps, in_turn
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from odradek.wire.messages.describe_transactions import TransactionState as DescribedState
from odradek.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from odradek.wire.messages.list_transactions import TransactionState as ListedState

DESCRIBED_BYTES = 100
"""The approximate size of a transaction's description in bytes, without its partitions."""
STATUSES = {status.shown: status for status in TransactionStatus}


class DescribeTransactionsHandler:
    """Handler of DescribeTransactions (API 65)."""

    def __init__(self, desk: Desk, transactions: TransactionCoordinator) -> None:
        self._desk = desk
        self._transactions = transactions

    def handle(self, context: Context, request: DescribeTransactionsRequest) -> Result:
        return self._desk.steps.begin(self._answer(request), is_long=True)

    def _answer(self, request: DescribeTransactionsRequest) -> Steps[DescribeTransactionsResponse]:
        named = [each for each in dict.fromkeys(request.transactional_ids) if each]
        answers = yield from self._transactions.ask_all(
            0, ((each, DescribeTransaction(each)) for each in named)
        )
        described: dict[str, DescribedState] = {"": DescribedState(ErrorCode.INVALID_REQUEST)}
        for transactional_id, answer in zip(named, answers, strict=True):
            described[transactional_id] = _described(transactional_id, answer)
            yield 1 + len(described[transactional_id].topics)
        repeated = RepeatedSize()
        responses: list[DescribedState] = []
        unanswered = set(described)
        for transactional_id in request.transactional_ids:
            each = described[transactional_id]
            if transactional_id in unanswered:
                unanswered.remove(transactional_id)
            elif not repeated.has_room(_described_bytes(each)):
                each = DescribedState(TOO_LARGE, transactional_id)
            responses.append(each)
            yield 1
        return DescribeTransactionsResponse(0, responses)


def _described_bytes(each: DescribedState) -> int:
    return DESCRIBED_BYTES + sum(len(topic.topic) + 4 * len(topic.partitions) for topic in each.topics)


def _described(transactional_id: str, answer: Transaction | ErrorCode) -> DescribedState:
    if isinstance(answer, ErrorCode):
        return DescribedState(answer, transactional_id)
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(answer.partitions):
        topics.setdefault(topic, []).append(index)
    return DescribedState(
        ErrorCode.NONE,
        transactional_id,
        answer.status.shown,
        answer.timeout_ms,
        answer.start_ms,
        answer.producer_id,
        answer.producer_epoch,
        [TopicData(topic, indexes) for topic, indexes in topics.items()],
    )


class ListTransactionsHandler:
    """Handler of ListTransactions (API 66).

    A request can filter by duration since version 1 (KIP-994), and by a pattern since version 2 (KIP-1152).
    """

    def __init__(self, desk: Desk, transactions: TransactionCoordinator) -> None:
        self._desk = desk
        self._transactions = transactions

    def handle(self, context: Context, request: ListTransactionsRequest) -> Result:
        return self._desk.steps.begin(self._answer(request), is_long=True)

    def _answer(self, request: ListTransactionsRequest) -> Steps[ListTransactionsResponse]:
        pattern = request.transactional_id_pattern
        if pattern:
            is_valid: bool = yield in_turn(self._desk.long_work, is_pattern, pattern)
            if not is_valid:
                return ListTransactionsResponse(0, ErrorCode.INVALID_REGULAR_EXPRESSION)
        unknown = [name for name in dict.fromkeys(request.state_filters) if name not in STATUSES]
        statuses = {STATUSES[name] for name in request.state_filters if name in STATUSES}
        producer_ids = set(request.producer_id_filters)
        now_ms = self._desk.clock.wall_ms()

        def is_listed(each: Transaction) -> bool:
            return (
                (not request.state_filters or each.status in statuses)
                and (not producer_ids or each.producer_id in producer_ids)
                and (request.duration_filter < 0 or now_ms - each.start_ms > request.duration_filter)
            )

        answers = Answers()
        for _, shard in sorted(self._transactions.shards.items()):
            shard.submit(Ask(ListTransactions(), 0, answers.receiver(), now_ms))
            yield DECISION_UNITS
        states: list[TransactionsState | ErrorCode] = yield answers
        responses = []
        for state in states:
            if isinstance(state, ErrorCode):
                if state is ErrorCode.NOT_COORDINATOR:
                    continue
                return ListTransactionsResponse(0, state, unknown)
            for transactional_id in sorted(state.transactions):
                each = state.transactions[transactional_id]
                if is_listed(each):
                    responses.append(ListedState(transactional_id, each.producer_id, each.status.shown))
                yield 1
        if pattern:
            names = [each.transactional_id for each in responses]
            matching: set[str] = yield in_turn(self._desk.long_work, matching_names, pattern, names)
            responses = [each for each in responses if each.transactional_id in matching]
        return ListTransactionsResponse(0, ErrorCode.NONE, unknown, responses)
