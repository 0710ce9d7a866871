"""Reads the leader epochs, the end and the producer ids of each replica on a stopped node's disks, without
changes. PURE except for the reads.

The headers of batches are read after the newest producer snapshot. Older producer ids are in the snapshots, and
leader epochs in a checkpoint file. Without a snapshot, all batches are read. As at a start, the log ends before an
incomplete batch.

A future replica is the copy of a log that moves to another directory. A future replica counts as the replica
if a start of the node would use it. This is so if it is marked as complete and the original log is gone. If
the original log is gone and the copy is unfinished, the replica counts as missing.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from odradek.data_plane.log.directory.future_logs import CAUGHT_UP_FILE, parse_future_name
from odradek.data_plane.log.directory.log_loader import METADATA_TOPIC, parse_partition_name
from odradek.data_plane.log.loading import read_topic_id
from odradek.data_plane.log.parts.leader_epochs import FILE_NAME as EPOCHS_FILE
from odradek.data_plane.log.parts.leader_epochs import LeaderEpochs, MalformedCheckpoint
from odradek.data_plane.log.parts.producer_recovery import snapshot_offsets
from odradek.data_plane.log.parts.producer_state import DamagedSnapshot, ProducerState
from odradek.data_plane.log.segments.file_names import LOG_SUFFIX, SNAPSHOT_SUFFIX, file_name
from odradek.data_plane.log.segments.scan import SegmentScan
from odradek.env.ports import Dir, DiskError, File
from odradek.metadata_quorum.recovery.found import NO_NUMBER, FoundReplica
from odradek.wire.batches.batch_header import BatchHeader
from odradek.wire.batches.records import records
from odradek.wire.errors import KafkaError, MalformedMessage
from odradek.wire.metadata_frames import decode_coordinator_key, decode_coordinator_value
from odradek.wire.topic_partition import TopicPartition

__all__ = ["Replicas", "read_replicas"]

TRANSACTION_TOPIC = "__transaction_state"
_DECOMPRESSED_BYTES_MAX = 64 << 20
_SMALL_FILE_BYTES = 64 << 20


@attrs.frozen
class _Future:
    """A future replica, and whether it has all records of the log that it will replace."""

    path: str
    replica: FoundReplica
    is_complete: bool


@attrs.define
class Replicas:
    """The replicas in a node's log directories, the greatest producer id in them, and replicas that could not be
    read.
    """

    found: list[FoundReplica] = attrs.field(factory=list)
    producer_id: int = NO_NUMBER
    unreadable: list[str] = attrs.field(factory=list)
    missing: list[tuple[str, int]] = attrs.field(factory=list)
    """Partitions whose replica could not be read, or of which only an unfinished copy exists."""
    _futures: list[_Future] = attrs.field(factory=list)

    def add_future(self, future: _Future) -> None:
        self._futures.append(future)

    def settle_futures(self, *, is_whole: bool) -> None:
        """Add the future replicas that a start would use to `found`, and the other future replicas to
        `missing`.

        `is_whole` is true if all log directories of the node were read. If it is false, all future replicas
        are missing: an unread directory may have the original log, which may be longer than its copy.
        """
        for future in self._futures:
            replica = future.replica
            key = (replica.topic, replica.partition)
            if any((each.topic, each.partition) == key for each in self.found) or key in self.missing:
                continue
            if future.is_complete and is_whole:
                self.found.append(replica)
            else:
                self.missing.append(key)
                self.unreadable.append(
                    f"{future.path}: a copy of a log that was moving, up to offset {replica.end_offset}. The log itself is "
                    "missing"
                )


def read_replicas(directory: Dir, directory_id: bytes, into: Replicas) -> None:
    """Read all partitions in a log directory, and add them to `into`. Raises `DiskError` if it cannot be listed."""
    for name in directory.list_directories():
        future = parse_future_name(name)
        key = future or parse_partition_name(name)
        if key is None or key.topic == METADATA_TOPIC:
            continue
        try:
            replica = _read_replica(directory.subdir(name), key, directory_id, into)
            if future is None:
                into.found.append(replica)
            else:
                is_complete = directory.subdir(name).exists(CAUGHT_UP_FILE)
                into.add_future(_Future(f"{directory.path}/{name}", replica, is_complete))
        except DiskError as error:
            into.unreadable.append(str(error))
            into.missing.append((key.topic, key.partition))


def replica_names(directory: Dir) -> list[str]:
    """List the names of the partitions' directories in a log directory. Raises `DiskError`."""
    keys = {
        name: parse_future_name(name) or parse_partition_name(name) for name in directory.list_directories()
    }
    return [name for name, key in keys.items() if key is not None and key.topic != METADATA_TOPIC]


def _read_replica(directory: Dir, key: TopicPartition, directory_id: bytes, into: Replicas) -> FoundReplica:
    names = directory.list()
    epochs = _epochs(directory, names, into)
    producer_id, read_from = _producers(directory, names, into)
    leader_epoch, end_offset = epochs.latest, 0
    is_transactions = key.topic == TRANSACTION_TOPIC
    segments = [int(name[:20]) for name in names if _is_segment(name)]
    for at, base_offset in enumerate(segments):
        is_last = at + 1 == len(segments)
        if not is_transactions and not is_last and segments[at + 1] <= read_from:
            continue
        file = directory.open(file_name(base_offset, LOG_SUFFIX))
        try:
            end_offset = max(end_offset, base_offset)
            for position, header in SegmentScan(file, 0, file.size, base_offset):
                leader_epoch = max(leader_epoch, header.partition_leader_epoch)
                producer_id = max(producer_id, header.producer_id)
                end_offset = header.next_offset
                if is_transactions:
                    producer_id = max([producer_id, *_allocated(file, position, header)])
        finally:
            file.close()
    into.producer_id = max(into.producer_id, producer_id)
    topic_id = read_topic_id(directory, names)
    return FoundReplica(key.topic, key.partition, topic_id, directory_id, leader_epoch, end_offset)


def _is_segment(name: str) -> bool:
    return len(name) == 20 + len(LOG_SUFFIX) and name.endswith(LOG_SUFFIX) and name[:20].isdigit()


def _epochs(directory: Dir, names: list[str], into: Replicas) -> LeaderEpochs:
    if EPOCHS_FILE not in names:
        return LeaderEpochs()
    try:
        return LeaderEpochs.decode(directory.read_bytes(EPOCHS_FILE, _SMALL_FILE_BYTES))
    except MalformedCheckpoint as error:
        # The leader epochs can still be read from the batches.
        into.unreadable.append(f"{directory.path}/{EPOCHS_FILE}: {error}")
        return LeaderEpochs()


def _producers(directory: Dir, names: list[str], into: Replicas) -> tuple[int, int]:
    """Return the greatest producer id in the snapshots, and the offset from which batches have to be read."""
    producer_id, read_from = NO_NUMBER, 0
    for offset in snapshot_offsets(names):
        try:
            state = ProducerState.decode(directory.read_bytes(file_name(offset, SNAPSHOT_SUFFIX)))
        except DamagedSnapshot as error:
            into.unreadable.append(f"{directory.path}/{file_name(offset, SNAPSHOT_SUFFIX)}: {error}")
            continue
        producer_id = max([producer_id, *state.entries])
        read_from = offset
    return producer_id, read_from


def _allocated(file: File, position: int, header: BatchHeader) -> Iterator[int]:
    """Yield the producer ids in a transaction coordinator's records. A producer in such a record has an id,
    but may not have written anything yet.
    """
    if header.is_control:
        return
    try:
        for record in records(
            file.pread(header.size, position), decompressed_bytes_max=_DECOMPRESSED_BYTES_MAX
        ):
            if record.key is None or record.value is None:
                continue
            value = decode_coordinator_value(decode_coordinator_key(record.key, "transaction"), record.value)
            for field in ("producer_id", "previous_producer_id", "next_producer_id"):
                number = getattr(value, field, NO_NUMBER)
                if isinstance(number, int):
                    yield number
    except (KafkaError, MalformedMessage):
        return
