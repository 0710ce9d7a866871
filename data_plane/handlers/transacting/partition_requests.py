"""AddPartitionsToTxn and AddOffsetsToTxn: what a transaction is about to write to.

Producers name their partitions up to version 3. From version 4 on brokers ask, for many transactions at once (KIP-890).
They verify that a partition is in the transaction, or add it (transaction version 2).
"""

from __future__ import annotations

from odradek.data_plane.groups.coordinator import GroupCoordinator
from odradek.data_plane.groups.offsets_topic import OFFSETS_TOPIC
from odradek.data_plane.handlers.desk import Desk
from odradek.data_plane.handlers.grouping.gathering import DECISION_UNITS, Gather
from odradek.data_plane.handlers.transacting.asking import ask_coordinator, fenced_code
from odradek.data_plane.transactions.coordinator import TransactionCoordinator
from odradek.data_plane.transactions.requests import AddPartitions, Verified, VerifyPartitions
from odradek.data_plane.transactions.state import TopicPartitionPair
from odradek.metadata_quorum.topic_names import INTERNAL_TOPICS
from odradek.serving.contract import Context, Result
from odradek.serving.slices import Work, in_slices
from odradek.wire.coordinator_partition import coordinator_partition
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from odradek.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from odradek.wire.schema.anatomy import anatomy_of
from odradek.wire.schema.versions import (
    ADD_OFFSETS_TO_TXN_FENCED,
    ADD_PARTITIONS_TO_TXN_BATCHED,
    ADD_PARTITIONS_TO_TXN_FENCED,
)

ADDED_BY_CLIENTS, ADDED_BY_BROKERS = 0, 2
"""The client version of a transaction, by who adds its partitions."""


class AddPartitionsToTxnHandler:
    """API 24. A request adds all of its partitions, or none if one of them is unknown."""

    def __init__(self, desk: Desk, transactions: TransactionCoordinator) -> None:
        self._desk = desk
        self._transactions = transactions

    def handle(self, context: Context, request: AddPartitionsToTxnRequest) -> Result:
        version = context.api_version
        if version >= ADD_PARTITIONS_TO_TXN_BATCHED:
            return in_slices(self._desk.long_work, self._answer_all(version, request))
        return in_slices(self._desk.long_work, self._answer_one(version, request))

    def _answer_one(self, version: int, request: AddPartitionsToTxnRequest) -> Work[Result]:
        transaction = AddPartitionsToTxnTransaction(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            False,
            request.v3_and_below_topics,
        )
        topics, shape = transaction.topics, anatomy_of(request, version)
        refused = yield from self._refused(topics, INTERNAL_TOPICS)
        if refused is not None:
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=refused)

        def convert(code: ErrorCode) -> AddPartitionsToTxnResponse:
            code = fenced_code(code, version, ADD_PARTITIONS_TO_TXN_FENCED)
            results = [shape.refused(topic, code) for topic in topics]
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)

        if not transaction.transactional_id:
            return convert(ErrorCode.INVALID_REQUEST)

        asked = _to_add(transaction, ADDED_BY_CLIENTS)
        return ask_coordinator(self._transactions, asked.transactional_id, asked, convert)

    def _answer_all(self, version: int, request: AddPartitionsToTxnRequest) -> Work[Result]:
        shape = anatomy_of(request, version)
        refused: list[AddPartitionsToTxnResult] = []
        asked: list[AddPartitionsToTxnTransaction] = []

        def combine(answers: list[Verified | ErrorCode]) -> Work[AddPartitionsToTxnResponse]:
            results = list(refused)
            for transaction, answer in zip(asked, answers, strict=True):
                if isinstance(answer, ErrorCode):
                    results.append(shape.refused(transaction, answer))
                else:
                    results.append(_verified(transaction, answer))
                yield 1 + len(transaction.topics)
            return AddPartitionsToTxnResponse(0, ErrorCode.NONE, results)

        gather = Gather(self._desk, combine)
        for transaction in request.transactions:
            named = transaction.transactional_id
            results = yield from self._refused(transaction.topics, frozenset())
            if results is not None:
                refused.append(AddPartitionsToTxnResult(named, results))
                continue
            if not named:
                refused.append(shape.refused(transaction, ErrorCode.INVALID_REQUEST))
                continue
            asked.append(transaction)
            question: AddPartitions | VerifyPartitions
            if transaction.verify_only:
                question = VerifyPartitions(
                    named, transaction.producer_id, transaction.producer_epoch, _pairs(transaction.topics)
                )
            else:
                question = _to_add(transaction, ADDED_BY_BROKERS)
            self._transactions.ask(named, question, gather.part())
            yield DECISION_UNITS
        gather.close()
        return gather if gather.response is None else gather.response

    def _refused(
        self, topics: list[AddPartitionsToTxnTopic], closed: frozenset[str]
    ) -> Work[list[AddPartitionsToTxnTopicResult] | None]:
        """The refusal of all partitions if some do not exist, or are of topics `closed` to who asks."""
        image = self._desk.image
        is_refused = False
        results = []
        for topic in topics:
            known = image.topics.get(topic.name)
            codes = []
            for index in topic.partitions:
                code = ErrorCode.OPERATION_NOT_ATTEMPTED
                if topic.name in closed:
                    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                elif known is None or index not in known.partitions:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                is_refused = is_refused or code is not ErrorCode.OPERATION_NOT_ATTEMPTED
                codes.append(AddPartitionsToTxnPartitionResult(index, code))
                yield 1
            results.append(AddPartitionsToTxnTopicResult(topic.name, codes))
        return results if is_refused else None


def _pairs(topics: list[AddPartitionsToTxnTopic]) -> frozenset[TopicPartitionPair]:
    return frozenset((topic.name, index) for topic in topics for index in topic.partitions)


def _to_add(transaction: AddPartitionsToTxnTransaction, client_version: int) -> AddPartitions:
    return AddPartitions(
        transaction.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        _pairs(transaction.topics),
        client_version,
    )


def _verified(transaction: AddPartitionsToTxnTransaction, answer: Verified) -> AddPartitionsToTxnResult:
    # As in Kafka: each partition once, and no topic without any.
    topics = [
        AddPartitionsToTxnTopicResult(
            topic.name,
            [
                AddPartitionsToTxnPartitionResult(index, answer.code or answer.codes[topic.name, index])
                for index in dict.fromkeys(topic.partitions)
            ],
        )
        for topic in transaction.topics
        if topic.partitions
    ]
    return AddPartitionsToTxnResult(transaction.transactional_id, topics)


class AddOffsetsToTxnHandler:
    """API 25. The offsets of a group are in one partition of `__consumer_offsets`."""

    def __init__(self, groups: GroupCoordinator, transactions: TransactionCoordinator) -> None:
        self._groups = groups
        self._transactions = transactions

    def handle(self, context: Context, request: AddOffsetsToTxnRequest) -> Result:
        version = context.api_version
        if not request.transactional_id:
            return AddOffsetsToTxnResponse(0, ErrorCode.INVALID_REQUEST)
        groups = self._groups
        index = groups.partition_for(request.group_id)
        if index is None:
            index = coordinator_partition(request.group_id, groups.settings.topic_partitions)
        asked = AddPartitions(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            frozenset(((OFFSETS_TOPIC, index),)),
            ADDED_BY_CLIENTS,
        )

        def convert(code: ErrorCode) -> AddOffsetsToTxnResponse:
            return AddOffsetsToTxnResponse(0, fenced_code(code, version, ADD_OFFSETS_TO_TXN_FENCED))

        return ask_coordinator(self._transactions, asked.transactional_id, asked, convert)
