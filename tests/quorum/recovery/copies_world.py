"""Metadata logs as bytes: a history of batches, nodes that have parts of it, and the recoveries planned from them."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.image_records import records_of
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.ports import OffsetAndEpoch
from odradek.metadata_quorum.raft.voters import ReplicaKey, Voter, VoterSet
from odradek.metadata_quorum.recovery.found import CopyFiles, FoundDirectory, FoundNode, FoundReplica
from odradek.metadata_quorum.replica.checkpoint_files import encode_snapshot
from odradek.metadata_quorum.replica.metadata_batches import (
    batch_of_control_records,
    batch_of_values,
    encode_values,
)
from odradek.metadata_quorum.replica.storage_format import bootstrap_records
from odradek.wire.messages.control_records import KRaftVersionRecord
from odradek.wire.messages.metadata_records import (
    NoOpRecord,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
)
from odradek.wire.structure import Message

CLUSTER = "c"
METADATA = "/metadata"


def directory_of(node_id: int) -> bytes:
    return b"directory %06d" % node_id


def key_of(node_id: int) -> ReplicaKey:
    return ReplicaKey(node_id, directory_of(node_id))


def voters_of(*node_ids: int) -> VoterSet:
    return VoterSet.of(Voter(key_of(each), (("CONTROLLER", "127.0.0.1", 1),)) for each in node_ids)


def topic_id(number: int) -> bytes:
    return b"topic %010d" % number


@attrs.frozen
class Written:
    """A batch of the log: its bytes, and the end of the log after it."""

    data: bytes
    records: tuple[Message, ...]
    is_control: bool
    end: OffsetAndEpoch


def write(before: Sequence[Written], epoch: int, *records: Message, is_control: bool = False) -> Written:
    """Make the next batch of a log."""
    base = before[-1].end.offset if before else 0
    if is_control:
        data = batch_of_control_records(records, base, epoch, 1)
    else:
        data = batch_of_values(encode_values(records), base, epoch, 1)
    return Written(bytes(data), records, is_control, OffsetAndEpoch(base + len(records), epoch))


def beginning(voters: VoterSet) -> list[Written]:
    """Write the first batches of a cluster."""
    control = [KRaftVersionRecord(0, 1), voters.to_record()]
    log = [write([], 1, *control, is_control=True)]
    return [*log, write(log, 1, *bootstrap_records())]


def topic(number: int, replicas: Sequence[int] = (1, 2, 3), leader_epoch: int = 0) -> tuple[Message, ...]:
    """Return the records of a topic with one partition."""
    held = list(replicas)
    directories = [directory_of(each) for each in held]
    return (
        TopicRecord(f"t{number}", topic_id(number)),
        PartitionRecord(
            0,
            topic_id(number),
            held,
            held,
            leader=held[0],
            leader_epoch=leader_epoch,
            partition_epoch=0,
            directories=directories,
        ),
    )


def producer_ids(next_id: int) -> Message:
    return ProducerIdsRecord(1, 1, next_id)


def filler() -> Message:
    return NoOpRecord()


def copy_of(log: Sequence[Written], snapshot_at: int = 0, voters: VoterSet | None = None) -> CopyFiles:
    """Return a node's files: a snapshot of the first `snapshot_at` batches, and a log of the later ones."""
    if not snapshot_at:
        return CopyFiles(None, b"", b"".join(each.data for each in log))
    builder = ImageBuilder(MetadataImage.empty(CLUSTER))
    offset = 0
    for batch in log[:snapshot_at]:
        for record in batch.records:
            if not batch.is_control:
                builder.replay(offset, record, batch.end.epoch)
            offset += 1
    end = log[snapshot_at - 1].end
    control = () if voters is None else (KRaftVersionRecord(0, 1), voters.to_record())
    data = encode_snapshot(
        list(records_of(builder.build()[0])), control_records=control, epoch=end.epoch, timestamp_ms=1
    )
    return CopyFiles(end, data, b"".join(each.data for each in log[snapshot_at:]))


def found(
    node_id: int,
    copy: CopyFiles | None,
    *replicas: FoundReplica,
    quorum_epoch: int = 1,
    producer_id: int = -1,
    is_blank: bool = False,
) -> FoundNode:
    """Describe a combined node."""
    return FoundNode(
        node_id=node_id,
        cluster_id="" if is_blank else CLUSTER,
        is_broker=True,
        is_controller=True,
        endpoints=(("CONTROLLER", "127.0.0.1", 1),),
        static_voters=(),
        metadata_path=METADATA,
        directories=(FoundDirectory(METADATA, None if is_blank else directory_of(node_id)),),
        copy=copy,
        copy_problem="" if copy is not None else "has no metadata log",
        quorum_epoch=quorum_epoch,
        producer_id=producer_id,
        replicas=replicas,
    )


def replica(number: int, node_id: int, leader_epoch: int = 0, end_offset: int = 1) -> FoundReplica:
    """Describe a replica of topic `number` on a node's disk."""
    return FoundReplica(f"t{number}", 0, topic_id(number), directory_of(node_id), leader_epoch, end_offset)
