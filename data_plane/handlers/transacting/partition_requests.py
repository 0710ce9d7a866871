"""Handlers of AddPartitionsToTxn and AddOffsetsToTxn. These requests add partitions to a transaction before
records of the transaction are written there.

Up to version 3, producers send AddPartitionsToTxn. From version 4 on, brokers send it, for many transactions
at once (KIP-890). The brokers verify that a partition belongs to the transaction, or add the partition
(transaction version 2).
"""

from __future__ import annotations

from odradek.data_plane.groups.coordinator import GroupCoordinator
from odradek.data_plane.groups.offsets_topic import OFFSETS_TOPIC
from odradek.data_plane.handlers.desk import Desk
from odradek.data_plane.handlers.transacting.fencing import fenced_code
from odradek.data_plane.transactions.coordinator import TransactionCoordinator
from odradek.data_plane.transactions.requests import AddPartitions, Verified, VerifyPartitions
from odradek.data_plane.transactions.state import TopicPartitionPair
from odradek.metadata_quorum.topic_names import INTERNAL_TOPICS
from odradek.serving.contract import Context, Result
from odradek.serving.steps import Steps, Work
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
"""The transaction versions that a client may use. With version 0, the client itself adds partitions to its
transaction. With version 2, brokers add them.
"""


class AddPartitionsToTxnHandler:
    """Handler of AddPartitionsToTxn (API 24).

    A request adds all of its partitions, or none if one of them is unknown.
    """

    def __init__(self, desk: Desk, transactions: TransactionCoordinator) -> None:
        self._desk = desk
        self._transactions = transactions

    def handle(self, context: Context, request: AddPartitionsToTxnRequest) -> Result:
        version = context.api_version
        if version >= ADD_PARTITIONS_TO_TXN_BATCHED:
            return self._desk.steps.begin(self._answer_all(version, request), is_long=True)
        return self._desk.steps.begin(self._answer_one(version, request), is_long=True)

    def _answer_one(
        self, version: int, request: AddPartitionsToTxnRequest
    ) -> Steps[AddPartitionsToTxnResponse]:
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
        code = ErrorCode.INVALID_REQUEST
        if transaction.transactional_id:
            asked = _to_add(transaction, ADDED_BY_CLIENTS)
            code = yield from self._transactions.ask(asked.transactional_id, asked)
        code = fenced_code(code, version, ADD_PARTITIONS_TO_TXN_FENCED)
        results = [shape.refused(topic, code) for topic in topics]
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)

    def _answer_all(
        self, version: int, request: AddPartitionsToTxnRequest
    ) -> Steps[AddPartitionsToTxnResponse]:
        shape = anatomy_of(request, version)
        results: list[AddPartitionsToTxnResult] = []
        asked: list[AddPartitionsToTxnTransaction] = []
        for transaction in request.transactions:
            named = transaction.transactional_id
            refused = yield from self._refused(transaction.topics, frozenset())
            if refused is not None:
                results.append(AddPartitionsToTxnResult(named, refused))
            elif not named:
                results.append(shape.refused(transaction, ErrorCode.INVALID_REQUEST))
            else:
                asked.append(transaction)
        answers = yield from self._transactions.ask_all(
            0, ((each.transactional_id, _question(each)) for each in asked)
        )
        for transaction, answer in zip(asked, answers, strict=True):
            if isinstance(answer, Verified):
                results.append(_verified(transaction, answer))
            else:
                results.append(shape.refused(transaction, answer))
            yield 1 + len(transaction.topics)
        return AddPartitionsToTxnResponse(0, ErrorCode.NONE, results)

    def _refused(
        self, topics: list[AddPartitionsToTxnTopic], closed: frozenset[str]
    ) -> Work[list[AddPartitionsToTxnTopicResult] | None]:
        """Check that all partitions exist, and that no topic is in `closed`.

        Returns None if both conditions hold, otherwise an error for every partition.
        """
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


def _question(transaction: AddPartitionsToTxnTransaction) -> AddPartitions | VerifyPartitions:
    if not transaction.verify_only:
        return _to_add(transaction, ADDED_BY_BROKERS)
    return VerifyPartitions(
        transaction.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        _pairs(transaction.topics),
    )


def _to_add(transaction: AddPartitionsToTxnTransaction, client_version: int) -> AddPartitions:
    return AddPartitions(
        transaction.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        _pairs(transaction.topics),
        client_version,
    )


def _verified(transaction: AddPartitionsToTxnTransaction, answer: Verified) -> AddPartitionsToTxnResult:
    # As in Kafka, each partition is answered once, and a topic without partitions is left out.
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
    """Handler of AddOffsetsToTxn (API 25).

    It adds the partition of `__consumer_offsets` that has the group's offsets.
    """

    def __init__(self, desk: Desk, groups: GroupCoordinator, transactions: TransactionCoordinator) -> None:
        self._desk = desk
        self._groups = groups
        self._transactions = transactions

    def handle(self, context: Context, request: AddOffsetsToTxnRequest) -> Result:
        return self._desk.steps.begin(self._answer(context.api_version, request))

    def _answer(self, version: int, request: AddOffsetsToTxnRequest) -> Steps[AddOffsetsToTxnResponse]:
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
        code = yield from self._transactions.ask(asked.transactional_id, asked)
        return AddOffsetsToTxnResponse(0, fenced_code(code, version, ADD_OFFSETS_TO_TXN_FENCED))
