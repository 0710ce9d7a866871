"""The translation of the core's messages to Kafka's RPCs and back: Vote, BeginQuorumEpoch, EndQuorumEpoch,
Fetch. PURE.

Each of these RPCs names a topic and a partition, which must be those of the metadata log. An error of the
whole request (another cluster, another topic) is raised as a `KafkaError`; the core handles only errors of
the partition. The core's messages contain no endpoints. This module adds endpoints to RPCs that name a leader
(KIP-853).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from odradek.metadata_quorum.ports import OffsetAndEpoch
from odradek.metadata_quorum.raft.messages import (
    BeginEpoch,
    EndEpoch,
    EpochAnswer,
    Fetch,
    FetchAnswer,
    Request,
    Response,
    Vote,
    VoteAnswer,
)
from odradek.metadata_quorum.raft.voters import ReplicaKey
from odradek.metadata_quorum.replica.log_reading import describe_batches
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages import begin_quorum_epoch, end_quorum_epoch, fetch, vote
from odradek.wire.structure import Message

__all__ = [
    "METADATA_TOPIC",
    "METADATA_TOPIC_ID",
    "Endpoint",
    "Leader",
    "Sender",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "leader_endpoints_of",
    "refuse",
]

METADATA_TOPIC = "__cluster_metadata"
METADATA_TOPIC_ID = bytes(15) + b"\x01"
"""Kafka's reserved topic id of the metadata log."""
NOBODY = -1
NO_HIGH_WATERMARK = (1 << 63) - 1
"""The value of the high watermark in a Fetch whose sender names no high watermark (KIP-1166)."""

Endpoint = tuple[str, str, int]
"""An address of a node: (listener name, host, port)."""


@attrs.frozen
class Leader:
    """The leader in a response: its id, and its address if the answering node knows it."""

    node_id: int
    host: str
    port: int


# -- requests -----------------------------------------------------------------------------------------------------


@attrs.frozen
class Sender:
    """The facts about the sending node that its requests contain.

    `endpoints` are the addresses of its controller listeners.
    """

    cluster_id: str
    endpoints: Sequence[Endpoint]
    fetch_bytes_max: int


def encode_request(request: Request, sender: Sender) -> Message:
    """Encode a request of the core as its RPC."""
    return _ENCODERS[type(request)](request, sender)


def _encode_vote(request: Vote, sender: Sender) -> Message:
    partition = vote.VoteRequestPartitionData(
        0,
        request.epoch,
        request.sender.node_id,
        request.sender.directory_id,
        request.voter.directory_id,
        request.log_end.epoch,
        request.log_end.offset,
        request.pre_vote,
    )
    topic = vote.VoteRequestTopicData(METADATA_TOPIC, [partition])
    return vote.VoteRequest(sender.cluster_id, request.voter.node_id, [topic])


def _encode_begin_epoch(request: BeginEpoch, sender: Sender) -> Message:
    begin = begin_quorum_epoch
    partition = begin.BeginQuorumEpochRequestPartitionData(
        0, request.voter.directory_id, request.leader.node_id, request.epoch
    )
    return begin.BeginQuorumEpochRequest(
        sender.cluster_id,
        request.voter.node_id,
        [begin.BeginQuorumEpochRequestTopicData(METADATA_TOPIC, [partition])],
        [begin.LeaderEndpoint(*endpoint) for endpoint in sender.endpoints],
    )


def _encode_end_epoch(request: EndEpoch, sender: Sender) -> Message:
    end = end_quorum_epoch
    candidates = [end.ReplicaInfo(key.node_id, key.directory_id) for key in request.successors]
    partition = end.EndQuorumEpochRequestPartitionData(
        0, request.leader_id, request.epoch, preferred_candidates=candidates
    )
    return end.EndQuorumEpochRequest(
        sender.cluster_id,
        [end.EndQuorumEpochRequestTopicData(METADATA_TOPIC, [partition])],
        [end.LeaderEndpoint(*endpoint) for endpoint in sender.endpoints],
    )


def _encode_fetch(request: Fetch, sender: Sender) -> Message:
    partition = fetch.FetchPartition(
        0,
        request.epoch,
        request.offset,
        request.last_epoch,
        -1,
        sender.fetch_bytes_max,
        request.replica.directory_id,
    )
    if request.high_watermark is not None:
        partition.high_watermark = request.high_watermark
    return fetch.FetchRequest(
        sender.cluster_id,
        replica_state=fetch.ReplicaState(request.replica.node_id),
        max_wait_ms=request.wait_ms_max,
        max_bytes=sender.fetch_bytes_max,
        topics=[fetch.FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[partition])],
    )


_ENCODERS: Mapping[type[Request], Callable[[Any, Sender], Message]] = {
    Vote: _encode_vote,
    BeginEpoch: _encode_begin_epoch,
    EndEpoch: _encode_end_epoch,
    Fetch: _encode_fetch,
}


def decode_request(message: Message, *, me: ReplicaKey, cluster_id: str) -> Request:
    """Decode an RPC to a request for the core.

    Raises `KafkaError` if it is not about this quorum's log: INCONSISTENT_CLUSTER_ID, INVALID_REQUEST,
    UNKNOWN_TOPIC_OR_PARTITION.
    """
    asked: str | None = getattr(message, "cluster_id", None)
    if asked is not None and asked != cluster_id:
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID)
    partition = _only_partition(message)
    match message:
        case vote.VoteRequest():
            _check_node_id(partition.replica_id)
            return Vote(
                partition.replica_epoch,
                ReplicaKey(partition.replica_id, partition.replica_directory_id),
                _voter(message.voter_id, partition.voter_directory_id, me),
                OffsetAndEpoch(partition.last_offset, partition.last_offset_epoch),
                partition.pre_vote,
            )
        case begin_quorum_epoch.BeginQuorumEpochRequest():
            _check_node_id(partition.leader_id)
            return BeginEpoch(
                partition.leader_epoch,
                ReplicaKey(partition.leader_id),
                _voter(message.voter_id, partition.voter_directory_id, me),
            )
        case end_quorum_epoch.EndQuorumEpochRequest():
            _check_node_id(partition.leader_id)
            successors = [
                ReplicaKey(each.candidate_id, each.candidate_directory_id)
                for each in partition.preferred_candidates
            ] or [ReplicaKey(node_id) for node_id in partition.preferred_successors]
            return EndEpoch(partition.leader_epoch, partition.leader_id, tuple(successors))
        case fetch.FetchRequest():
            if partition.fetch_offset < 0 or partition.last_fetched_epoch < -1 or message.max_wait_ms < 0:
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            return Fetch(
                partition.current_leader_epoch,
                ReplicaKey(replica_id_of(message), partition.replica_directory_id),
                partition.fetch_offset,
                partition.last_fetched_epoch,
                message.max_wait_ms,
                None if partition.high_watermark == NO_HIGH_WATERMARK else partition.high_watermark,
            )
        case _:
            raise AssertionError(f"{type(message).__name__} is not a request of the quorum")


def _check_node_id(node_id: int) -> None:
    """Refuse a negative id, which stands for no node or a bootstrap server. Raises `KafkaError`."""
    if node_id < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST)


def replica_id_of(message: fetch.FetchRequest) -> int:
    """Return the id of the fetching replica. The id is negative if the reader is not a replica."""
    return message.replica_state.replica_id if message.replica_state.replica_id >= 0 else message.replica_id


def _voter(node_id: int, directory_id: bytes, me: ReplicaKey) -> ReplicaKey:
    return ReplicaKey(me.node_id if node_id == NOBODY else node_id, directory_id)


def _only_partition(message: Any) -> Any:
    """Return the only partition in the request, which must be the partition of the metadata log.

    Raises `KafkaError`.
    """
    if len(message.topics) != 1 or len(message.topics[0].partitions) != 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    topic = message.topics[0]
    if isinstance(message, fetch.FetchRequest):
        known = topic.topic_id == METADATA_TOPIC_ID or topic.topic == METADATA_TOPIC
        index = topic.partitions[0].partition
    else:
        known = topic.topic_name == METADATA_TOPIC
        index = topic.partitions[0].partition_index
    if not known or index != 0:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic.partitions[0]


def leader_endpoints_of(message: Message) -> dict[int, tuple[Endpoint, ...]]:
    """Return the leader's endpoints from a message, by node id."""
    if not isinstance(
        message, begin_quorum_epoch.BeginQuorumEpochRequest | end_quorum_epoch.EndQuorumEpochRequest
    ):
        return {}
    endpoints = tuple((each.name, each.host, each.port) for each in message.leader_endpoints)
    return {_only_partition(message).leader_id: endpoints} if endpoints else {}


# -- responses ----------------------------------------------------------------------------------------------------


def encode_response(
    response: Response, request: Message, leader: Leader | None, records: bytes = b""
) -> Message:
    """Encode the core's answer to `request`.

    `leader` has the address of the leader that the answer names. `records` are the fetched batches.
    """
    leader_id = NOBODY if response.leader_id is None else response.leader_id
    match response:
        case VoteAnswer():
            answered = vote.VoteResponsePartitionData(
                0, response.error, leader_id, response.epoch, response.granted
            )
            return vote.VoteResponse(
                0,
                [vote.VoteResponseTopicData(METADATA_TOPIC, [answered])],
                [] if leader is None else [vote.NodeEndpoint(leader.node_id, leader.host, leader.port)],
            )
        case EpochAnswer():
            of = begin_quorum_epoch
            if isinstance(request, begin_quorum_epoch.BeginQuorumEpochRequest):
                begun = of.BeginQuorumEpochResponsePartitionData(0, response.error, leader_id, response.epoch)
                return of.BeginQuorumEpochResponse(
                    0,
                    [of.BeginQuorumEpochResponseTopicData(METADATA_TOPIC, [begun])],
                    [] if leader is None else [of.NodeEndpoint(leader.node_id, leader.host, leader.port)],
                )
            end = end_quorum_epoch
            ended = end.EndQuorumEpochResponsePartitionData(0, response.error, leader_id, response.epoch)
            return end.EndQuorumEpochResponse(
                0,
                [end.EndQuorumEpochResponseTopicData(METADATA_TOPIC, [ended])],
                [] if leader is None else [end.NodeEndpoint(leader.node_id, leader.host, leader.port)],
            )
        case FetchAnswer():
            return _encode_fetch_answer(response, leader_id, leader, records)


def _encode_fetch_answer(
    response: FetchAnswer, leader_id: int, leader: Leader | None, records: bytes
) -> fetch.FetchResponse:
    partition = fetch.PartitionData(
        0,
        response.error,
        response.high_watermark,
        response.high_watermark,
        current_leader=fetch.LeaderIdAndEpoch(leader_id, response.epoch),
        aborted_transactions=None,
        records=records,
    )
    if response.diverging is not None:
        partition.diverging_epoch = fetch.EpochEndOffset(response.diverging.epoch, response.diverging.offset)
    if response.snapshot is not None:
        partition.snapshot_id = fetch.SnapshotId(response.snapshot.offset, response.snapshot.epoch)
    topic = fetch.FetchableTopicResponse(METADATA_TOPIC, METADATA_TOPIC_ID, [partition])
    return fetch.FetchResponse(
        responses=[topic],
        node_endpoints=[]
        if leader is None
        else [fetch.NodeEndpoint(leader.node_id, leader.host, leader.port)],
    )


def decode_response(message: Any) -> tuple[Response, dict[int, tuple[str, int]]]:
    """Decode a response. Returns the answer for the core, and the addresses of nodes in it, by node id.

    Raises `KafkaError`: the peer's error for the whole request, or CORRUPT_MESSAGE for a malformed response.
    """
    if message.error_code:
        raise KafkaError(ErrorCode(message.error_code))
    is_fetch = isinstance(message, fetch.FetchResponse)
    topics: Any = message.responses if is_fetch else message.topics
    if len(topics) != 1 or len(topics[0].partitions) != 1 or topics[0].partitions[0].partition_index != 0:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the controller's answer is not about the metadata log")
    partition: Any = topics[0].partitions[0]
    addresses = {each.node_id: (each.host, each.port) for each in message.node_endpoints}
    error = ErrorCode(partition.error_code)
    if error is ErrorCode.INCONSISTENT_CLUSTER_ID:
        # The response may come from another cluster. So do not pass its epoch and its leader to the core.
        raise KafkaError(error)
    if is_fetch:
        return _decode_fetch_answer(partition, error), addresses
    leader_id = partition.leader_id if partition.leader_id >= 0 else None
    if isinstance(message, vote.VoteResponse):
        return VoteAnswer(partition.leader_epoch, leader_id, partition.vote_granted, error), addresses
    return EpochAnswer(partition.leader_epoch, leader_id, error), addresses


def _decode_fetch_answer(partition: fetch.PartitionData, error: ErrorCode) -> FetchAnswer:
    leader = partition.current_leader
    diverging = partition.diverging_epoch
    snapshot = partition.snapshot_id
    return FetchAnswer(
        leader.leader_epoch,
        leader.leader_id if leader.leader_id >= 0 else None,
        partition.high_watermark,
        tuple(describe_batches(bytes(partition.records or b""), source="a Fetch answer")),
        OffsetAndEpoch(diverging.end_offset, diverging.epoch) if diverging.end_offset >= 0 else None,
        OffsetAndEpoch(snapshot.end_offset, snapshot.epoch) if snapshot.end_offset >= 0 else None,
        error,
    )


def refuse(request: Message, code: ErrorCode) -> Message:
    """Make the response to a request that is refused as a whole."""
    match request:
        case vote.VoteRequest():
            return vote.VoteResponse(code)
        case begin_quorum_epoch.BeginQuorumEpochRequest():
            return begin_quorum_epoch.BeginQuorumEpochResponse(code)
        case end_quorum_epoch.EndQuorumEpochRequest():
            return end_quorum_epoch.EndQuorumEpochResponse(code)
        case fetch.FetchRequest():
            return fetch.FetchResponse(error_code=code)
        case _:
            raise AssertionError(f"{type(request).__name__} is not a request of the quorum")
