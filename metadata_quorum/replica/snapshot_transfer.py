"""The transfer of snapshots between nodes: both sides of the FetchSnapshot RPC (KIP-630, KIP-853). PORTED.

If a replica's log ends before the leader's log begins, a Fetch answer names the snapshot to load. The replica
fetches chunks by position, writes them into a draft, and uses the snapshot only if it is complete and
undamaged. The leader keeps no state of a transfer. It reads each chunk from the file, and answers
SNAPSHOT_NOT_FOUND if the snapshot was removed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from odradek.env.pausing import pause
from odradek.env.ports import DiskRefused, Env
from odradek.metadata_quorum.ports import (
    MetadataLogCorrupt,
    OffsetAndEpoch,
    PeerChannel,
    SnapshotStore,
    StoredSnapshot,
)
from odradek.metadata_quorum.raft.voters import ReplicaKey
from odradek.metadata_quorum.replica.driver_protocol import QuorumSettings
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotRequestPartitionSnapshot,
    FetchSnapshotRequestTopicSnapshot,
    FetchSnapshotResponse,
    FetchSnapshotResponsePartitionSnapshot,
    FetchSnapshotResponseTopicSnapshot,
    LeaderIdAndEpoch,
    NodeEndpoint,
    SnapshotId,
)

__all__ = ["LeaderView", "SnapshotAnswer", "answer_fetch_snapshot", "fetch_snapshot"]

METADATA_TOPIC = "__cluster_metadata"
CHUNK_BYTES_MAX = 1 << 20
NOBODY = -1


# -- as a follower ---------------------------------------------------------------------------------------------------


async def fetch_snapshot(
    env: Env,
    settings: QuorumSettings,
    channel: PeerChannel,
    store: SnapshotStore,
    snapshot: OffsetAndEpoch,
    leader_epoch: int,
    progressed: Callable[[], None],
) -> StoredSnapshot:
    """Fetch a snapshot from the leader of this epoch, through `channel`, into `store`.

    `progressed` is called after each chunk. `progressed` may raise an error to abort the transfer, e.g. if
    there is another leader. Raises `KafkaError` (the leader's error, REQUEST_TIMED_OUT, CORRUPT_MESSAGE for
    malformed answers), `ConnectionLost`, `DiskError`. After an error the draft is removed. Cancel this
    function only when the node ends, because the draft then stays until the next start.
    """
    workers = env.workers
    draft = await workers.run(store.begin, snapshot)
    try:
        while True:
            request = _request(settings, leader_epoch, snapshot, draft.size)
            response = await channel.request(
                request, env.clock.monotonic() + settings.raft.request_timeout_seconds
            )
            chunk, size = _chunk(response, snapshot, draft.size)
            await workers.run(draft.append, chunk)
            progressed()
            if draft.size == size:
                break
        try:
            return await workers.run(draft.finish)
        except MetadataLogCorrupt as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    except Exception:
        reached("quorum.draft_discarded")
        # Discard the draft after an error. After a cancellation or a crash, the next start of the node
        # removes all drafts.
        await workers.run(draft.discard)
        raise


def _request(
    settings: QuorumSettings, leader_epoch: int, snapshot: OffsetAndEpoch, position: int
) -> FetchSnapshotRequest:
    partition = FetchSnapshotRequestPartitionSnapshot(
        0, leader_epoch, SnapshotId(snapshot.offset, snapshot.epoch), position, settings.me.directory_id
    )
    topic = FetchSnapshotRequestTopicSnapshot(METADATA_TOPIC, [partition])
    return FetchSnapshotRequest(settings.cluster_id, settings.me.node_id, CHUNK_BYTES_MAX, [topic])


def _chunk(response: FetchSnapshotResponse, snapshot: OffsetAndEpoch, position: int) -> tuple[bytes, int]:
    """Return the bytes at `position`, and the size of the whole snapshot, from a response.

    Raises `KafkaError`.
    """
    if response.error_code:
        raise KafkaError(ErrorCode(response.error_code))
    partitions = [
        each for topic in response.topics if topic.name == METADATA_TOPIC for each in topic.partitions
    ]
    if len(partitions) != 1 or partitions[0].index != 0:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, "the leader's FetchSnapshot answer does not name the metadata log"
        )
    found = partitions[0]
    if found.error_code:
        raise KafkaError(ErrorCode(found.error_code))
    offered = found.snapshot_id
    chunk = bytes(found.unaligned_records or b"")
    if (
        (offered.end_offset, offered.epoch) != (snapshot.offset, snapshot.epoch)
        or found.position != position
        or not chunk
        or position + len(chunk) > found.size
    ):
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"this node asked for position {position} of {snapshot}, and the leader sent {len(chunk)} "
            f"bytes from position {found.position} of {found.size} bytes",
        )
    return chunk, found.size


# -- as a leader -----------------------------------------------------------------------------------------------------


@attrs.frozen
class LeaderView:
    """The leader and epoch as the answering node knows them."""

    node_id: int
    cluster_id: str
    epoch: int
    leader_id: int | None
    leader_endpoint: tuple[str, int] | None = None


@attrs.frozen
class SnapshotAnswer:
    """The response. `served` is the follower that gets a chunk (None for a refusal): its request has shown
    that it is alive.
    """

    response: FetchSnapshotResponse
    served: ReplicaKey | None = None


def answer_fetch_snapshot(
    request: FetchSnapshotRequest, store: SnapshotStore, leader: LeaderView
) -> SnapshotAnswer:
    """Make the response with one chunk of a snapshot.

    The order of checks is Kafka's. Blocks for a read of at most CHUNK_BYTES_MAX. Raises `DiskError`.
    """
    if request.cluster_id is not None and request.cluster_id != leader.cluster_id:
        return SnapshotAnswer(FetchSnapshotResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID))
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return SnapshotAnswer(FetchSnapshotResponse(error_code=ErrorCode.INVALID_REQUEST))
    topic = request.topics[0]
    asked = topic.partitions[0]
    if topic.name != METADATA_TOPIC or asked.partition != 0:
        unknown = _partition(asked, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return SnapshotAnswer(
            FetchSnapshotResponse(topics=[FetchSnapshotResponseTopicSnapshot(topic.name, [unknown])])
        )
    error = _leader_error(asked.current_leader_epoch, leader)
    if error is ErrorCode.NONE and asked.snapshot_id.end_offset == 0:
        # A snapshot at offset 0 has the first voters. Each node has such a snapshot of its own, so it is not
        # transferred.
        error = ErrorCode.SNAPSHOT_NOT_FOUND
    if error is ErrorCode.NONE:
        end = OffsetAndEpoch(asked.snapshot_id.end_offset, asked.snapshot_id.epoch)
        pause()
        try:
            chunk, size = store.read(end, asked.position, min(request.max_bytes, CHUNK_BYTES_MAX))
        except KafkaError as refusal:
            error = refusal.code
        except DiskRefused:
            error = ErrorCode.KAFKA_STORAGE_ERROR
        else:
            found = _partition(asked, ErrorCode.NONE, leader, size, chunk)
            served = ReplicaKey(request.replica_id, asked.replica_directory_id)
            return SnapshotAnswer(_response(topic.name, found, leader), served)
    return SnapshotAnswer(_response(topic.name, _partition(asked, error, leader), leader))


def _leader_error(epoch: int, leader: LeaderView) -> ErrorCode:
    if epoch < leader.epoch:
        reached("quorum.snapshot_of_earlier_epoch_refused")
        return ErrorCode.FENCED_LEADER_EPOCH
    if epoch > leader.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE if leader.leader_id == leader.node_id else ErrorCode.NOT_LEADER_OR_FOLLOWER


def _partition(
    asked: FetchSnapshotRequestPartitionSnapshot,
    error: ErrorCode,
    leader: LeaderView | None = None,
    size: int = 0,
    chunk: bytes = b"",
) -> FetchSnapshotResponsePartitionSnapshot:
    partition = FetchSnapshotResponsePartitionSnapshot(
        index=asked.partition, error_code=error, unaligned_records=chunk
    )
    if leader is not None:
        partition.current_leader = LeaderIdAndEpoch(
            NOBODY if leader.leader_id is None else leader.leader_id, leader.epoch
        )
    if error is ErrorCode.NONE:
        partition.snapshot_id = asked.snapshot_id
        partition.size = size
        partition.position = asked.position
    return partition


def _response(
    topic: str, partition: FetchSnapshotResponsePartitionSnapshot, leader: LeaderView
) -> FetchSnapshotResponse:
    endpoints = []
    if leader.leader_endpoint is not None and leader.leader_id is not None:
        endpoints.append(NodeEndpoint(leader.leader_id, *leader.leader_endpoint))
    return FetchSnapshotResponse(
        topics=[FetchSnapshotResponseTopicSnapshot(topic, [partition])], node_endpoints=endpoints
    )
