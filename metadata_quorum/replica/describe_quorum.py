"""DescribeQuorum as in Kafka: the leader's view of every replica (KIP-595, KIP-853). PURE."""

from __future__ import annotations

from odradek.metadata_quorum.raft.core_state import CoreState
from odradek.metadata_quorum.raft.roles import Leader, Progress
from odradek.metadata_quorum.raft.voters import ReplicaKey
from odradek.metadata_quorum.replica.wire_messages import METADATA_TOPIC, NOBODY
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
)

__all__ = ["describe_quorum", "refuse_description"]

OBSERVER_SECONDS = 300.0
"""The time, in seconds, after which an observer that does not fetch is left out (Kafka's constant)."""


def describe_quorum(
    core: CoreState, request: DescribeQuorumRequest, high_watermark: int, now: float, wall_ms: int
) -> DescribeQuorumResponse:
    """Describe the quorum.

    `now` and `wall_ms` are the present time on the monotonic clock and on the wall clock. Times in the
    response are wall-clock milliseconds.
    """
    named = [
        (topic.topic_name, partition.partition_index)
        for topic in request.topics[:2]
        for partition in topic.partitions[:2]
    ]
    if named != [(METADATA_TOPIC, 0)] or len(request.topics) != 1:
        return refuse_description(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    role = core.role
    if not isinstance(role, Leader):
        answer = refuse_description(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition = answer.topics[0].partitions[0]
        partition.leader_id = NOBODY if core.leader_id is None else core.leader_id
        partition.leader_epoch = core.epoch
        return answer

    def state(key: ReplicaKey, progress: Progress | None) -> ReplicaState:
        # If only the configuration names a voter (kraft.version 0), `key` has no directory id. The response
        # then has none either, although the leader may know the id from the voter's fetches.
        if key.matches(core.me):
            return ReplicaState(key.node_id, key.directory_id, core.log.end_offset, wall_ms, wall_ms)
        if progress is None or not key.matches(progress.key):
            return ReplicaState(key.node_id, key.directory_id, -1)
        return ReplicaState(
            key.node_id,
            key.directory_id,
            progress.offset,
            _wall_ms(progress.last_fetch, now, wall_ms),
            _wall_ms(progress.last_caught_up, now, wall_ms),
        )

    voters = [state(each.key, role.progress_of(each.key)) for each in core.voters.voters]
    observers = [
        state(progress.key, progress)
        for _, progress in sorted(role.progress.items())
        if not core.voters.has(progress.key) and progress.last_fetch >= now - OBSERVER_SECONDS
    ]
    if not core.is_voter:
        observers.append(state(core.me, None))
    partition = DescribeQuorumResponsePartitionData(
        0, 0, "", core.me.node_id, core.epoch, high_watermark, voters, observers
    )
    nodes = [
        Node(each.key.node_id, [Listener(*endpoint) for endpoint in each.endpoints])
        for each in core.voters.voters
    ]
    return DescribeQuorumResponse(
        0, "", [DescribeQuorumResponseTopicData(METADATA_TOPIC, [partition])], nodes
    )


def _wall_ms(moment: float, now: float, wall_ms: int) -> int:
    return -1 if moment == float("-inf") else wall_ms - round((now - moment) * 1000)


def refuse_description(request: DescribeQuorumRequest, code: ErrorCode) -> DescribeQuorumResponse:
    """Make the response with one error for all partitions in the request.

    There may be tens of thousands of partitions, so equal results share one object.
    """
    text, nobody = code.message, list[ReplicaState]()
    refused: dict[int, DescribeQuorumResponsePartitionData] = {}

    def result(number: int) -> DescribeQuorumResponsePartitionData:
        found = refused.get(number)
        if found is None:
            found = refused[number] = DescribeQuorumResponsePartitionData(
                number, code, text, 0, 0, 0, nobody, nobody
            )
        return found

    return DescribeQuorumResponse(
        0,
        "",
        [
            DescribeQuorumResponseTopicData(
                topic.topic_name,
                [result(partition.partition_index) for partition in topic.partitions],
            )
            for topic in request.topics
        ],
    )
