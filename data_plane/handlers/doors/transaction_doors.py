"""Doors with rules of their own about transactions: InitProducerId, AddPartitionsToTxn, ListTransactions. Their
rights do not fit into one row of the table in `apis.py`.
"""

from __future__ import annotations

from odradek.metadata_quorum.topic_names import INTERNAL_TOPICS
from odradek.security.acls.rules import CLUSTER_NAME, Operation, ResourceType
from odradek.security.doors.door import Admitted, Asked
from odradek.security.doors.needing import hiding, needing, on_transactional_id, then
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from odradek.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from odradek.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from odradek.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from odradek.wire.schema.anatomy import anatomy_of
from odradek.wire.schema.versions import ADD_PARTITIONS_TO_TXN_BATCHED

__all__ = [
    "add_partitions_to_txn_door",
    "describe_transactions_door",
    "init_producer_id_door",
    "list_transactions_door",
]

_ID_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def init_producer_id_door(asked: Asked, request: InitProducerIdRequest) -> InitProducerIdResponse | None:
    """Require WRITE on the transactional id, and TWO_PHASE_COMMIT if it is requested.

    If there is no transactional id, require IDEMPOTENT_WRITE on the cluster, or WRITE on any topic (KIP-679).
    """
    named = request.transactional_id
    code = ErrorCode.NONE
    if named is not None:
        if not asked.may_transact(Operation.WRITE, named) or (
            request.enable2_pc and not asked.may_transact(Operation.TWO_PHASE_COMMIT, named)
        ):
            code = _ID_DENIED
    elif not asked.would(
        Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME
    ) and not asked.rights.allows_any(Operation.WRITE, ResourceType.TOPIC):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return anatomy_of(request, asked.version).refuse(request, code) if code else None


def add_partitions_to_txn_door(
    asked: Asked, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse | None:
    """Require WRITE on the transactional id and on each topic.

    From version 4 on, only brokers send this request, and they need CLUSTER_ACTION instead.
    """
    if asked.version >= ADD_PARTITIONS_TO_TXN_BATCHED:
        if asked.may_cluster(Operation.CLUSTER_ACTION):
            return None
        return _refused(asked, request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if not asked.may_transact(Operation.WRITE, request.v3_and_below_transactional_id):
        return _refused(asked, request, _ID_DENIED)
    denied = {
        topic.name
        for topic in request.v3_and_below_topics
        if topic.name not in INTERNAL_TOPICS and not asked.may(Operation.WRITE, topic.name)
    }
    if not denied:
        return None
    response = _refused(asked, request, ErrorCode.OPERATION_NOT_ATTEMPTED)
    for topic in response.results_by_topic_v3_and_below:
        for each in topic.results_by_partition:
            each.partition_error_code = _why_not_added(asked, topic.name, each.partition_index, denied)
    return response


def _refused(asked: Asked, request: AddPartitionsToTxnRequest, code: ErrorCode) -> AddPartitionsToTxnResponse:
    response: AddPartitionsToTxnResponse = anatomy_of(request, asked.version).refuse(request, code)
    return response


def _why_not_added(asked: Asked, name: str, index: int, denied: set[str]) -> ErrorCode:
    """Return the error for one partition of a refused request. The whole request is refused because the
    client may not write to some of its topics.
    """
    if name in denied or name in INTERNAL_TOPICS:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = asked.topics.topics.get(name)
    if topic is None or index not in topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.OPERATION_NOT_ATTEMPTED


def _hide_topics(
    asked: Asked, request: DescribeTransactionsRequest, response: DescribeTransactionsResponse
) -> DescribeTransactionsResponse:
    for each in response.transaction_states:
        each.topics = hiding(asked, ResourceType.TOPIC, each.topics, "topic")
    return response


describe_transactions_door = then(
    needing(each=on_transactional_id(Operation.DESCRIBE)),
    _hide_topics,
    "DESCRIBE on each transactional id. The answer has only those of its topics that the client may DESCRIBE.",
)


def list_transactions_door(asked: Asked, request: ListTransactionsRequest) -> Admitted:
    """Let in all clients. The answer has only the transactional ids that the client may DESCRIBE."""

    def hide(response: ListTransactionsResponse) -> ListTransactionsResponse:
        response.transaction_states = hiding(
            asked, ResourceType.TRANSACTIONAL_ID, response.transaction_states, "transactional_id"
        )
        return response

    return Admitted(request, hide)
