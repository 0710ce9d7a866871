"""Doors of requests of producers with an id, of transactions, and of markers."""

from __future__ import annotations

import attrs

from odradek.metadata_quorum.topic_names import INTERNAL_TOPICS
from odradek.security.acls.rules import CLUSTER_NAME, Operation, ResourceType
from odradek.security.doors.door import Admitted, Asked, split
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from odradek.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)
from odradek.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from odradek.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from odradek.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from odradek.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from odradek.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from odradek.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

__all__ = [
    "add_offsets_to_txn_door",
    "add_partitions_to_txn_door",
    "describe_transactions_door",
    "end_txn_door",
    "init_producer_id_door",
    "list_transactions_door",
    "txn_offset_commit_door",
    "write_txn_markers_door",
]

_ID_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
BATCHED_SINCE = 4


def init_producer_id_door(asked: Asked, request: InitProducerIdRequest) -> InitProducerIdResponse | None:
    """WRITE on the transactional id, and TWO_PHASE_COMMIT where it is asked for. Without an id: IDEMPOTENT_WRITE on
    the cluster, or WRITE on any topic (KIP-679)."""
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
    return InitProducerIdResponse(0, code, -1, -1) if code else None


def add_partitions_to_txn_door(
    asked: Asked, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse | None:
    """WRITE on the transactional id and on each topic; brokers, which ask since version 4, need CLUSTER_ACTION."""
    if asked.version >= BATCHED_SINCE:
        if asked.may_cluster(Operation.CLUSTER_ACTION):
            return None
        return AddPartitionsToTxnResponse(0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    topics = request.v3_and_below_topics
    if not asked.may_transact(Operation.WRITE, request.v3_and_below_transactional_id):
        told = [_added(topic, dict.fromkeys(topic.partitions, _ID_DENIED)) for topic in topics]
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=told)
    denied = {
        topic.name
        for topic in topics
        if topic.name not in INTERNAL_TOPICS and not asked.may(Operation.WRITE, topic.name)
    }
    if not denied:
        return None
    told = [
        _added(topic, {index: _why_not_added(asked, topic.name, index, denied) for index in topic.partitions})
        for topic in topics
    ]
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=told)


def _why_not_added(asked: Asked, name: str, index: int, denied: set[str]) -> ErrorCode:
    """The reason for one partition of a request that adds nothing because of another one."""
    if name in denied or name in INTERNAL_TOPICS:
        return _TOPIC_DENIED
    topic = asked.topics.topics.get(name)
    if topic is None or index not in topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.OPERATION_NOT_ATTEMPTED


def _added(topic: AddPartitionsToTxnTopic, codes: dict[int, ErrorCode]) -> AddPartitionsToTxnTopicResult:
    return AddPartitionsToTxnTopicResult(
        topic.name, [AddPartitionsToTxnPartitionResult(index, code) for index, code in codes.items()]
    )


def add_offsets_to_txn_door(asked: Asked, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse | None:
    """WRITE on the transactional id, READ on the group."""
    if not asked.may_transact(Operation.WRITE, request.transactional_id):
        return AddOffsetsToTxnResponse(0, _ID_DENIED)
    if not asked.may_group(Operation.READ, request.group_id):
        return AddOffsetsToTxnResponse(0, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return None


def end_txn_door(asked: Asked, request: EndTxnRequest) -> EndTxnResponse | None:
    """WRITE on the transactional id."""
    if asked.may_transact(Operation.WRITE, request.transactional_id):
        return None
    return EndTxnResponse(0, _ID_DENIED)


def txn_offset_commit_door(
    asked: Asked, request: TxnOffsetCommitRequest
) -> Admitted | TxnOffsetCommitResponse | None:
    """WRITE on the transactional id, READ on the group and on each topic."""
    code = ErrorCode.NONE
    if not asked.may_transact(Operation.WRITE, request.transactional_id):
        code = _ID_DENIED
    elif not asked.may_group(Operation.READ, request.group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if code:
        return TxnOffsetCommitResponse(0, [_no_commit(each, code) for each in request.topics])
    allowed, refused = split(request.topics, lambda topic: asked.may(Operation.READ, topic.name))
    if not refused:
        return None
    told = [_no_commit(each, _TOPIC_DENIED) for each in refused]

    def merge(response: TxnOffsetCommitResponse) -> TxnOffsetCommitResponse:
        response.topics = [*response.topics, *told]
        return response

    return Admitted(attrs.evolve(request, topics=allowed), merge)


def _no_commit(topic: TxnOffsetCommitRequestTopic, code: ErrorCode) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        topic.name,
        [TxnOffsetCommitResponsePartition(each.partition_index, code) for each in topic.partitions],
    )


def write_txn_markers_door(asked: Asked, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse | None:
    """ALTER or CLUSTER_ACTION on the cluster (KIP-664)."""
    if asked.would(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME) or asked.may_cluster(
        Operation.CLUSTER_ACTION
    ):
        return None
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return WriteTxnMarkersResponse(
        [
            WritableTxnMarkerResult(
                marker.producer_id,
                [
                    WritableTxnMarkerTopicResult(
                        topic.name,
                        [WritableTxnMarkerPartitionResult(index, code) for index in topic.partition_indexes],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def describe_transactions_door(asked: Asked, request: DescribeTransactionsRequest) -> Admitted:
    """DESCRIBE on each transactional id; of its topics those are told that the client may DESCRIBE."""
    allowed, refused = split(
        request.transactional_ids, lambda name: asked.may_transact(Operation.DESCRIBE, name)
    )

    def merge(response: DescribeTransactionsResponse) -> DescribeTransactionsResponse:
        for each in response.transaction_states:
            each.topics = [
                topic
                for topic in each.topics
                if asked.would(Operation.DESCRIBE, ResourceType.TOPIC, topic.topic)
            ]
        denied = [TransactionState(_ID_DENIED, name) for name in refused]
        response.transaction_states = [*response.transaction_states, *denied]
        return response

    return Admitted(attrs.evolve(request, transactional_ids=allowed), merge)


def list_transactions_door(asked: Asked, request: ListTransactionsRequest) -> Admitted:
    """The transactional ids that the client may DESCRIBE."""

    def hide(response: ListTransactionsResponse) -> ListTransactionsResponse:
        response.transaction_states = [
            each
            for each in response.transaction_states
            if asked.would(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, each.transactional_id)
        ]
        return response

    return Admitted(request, hide)
