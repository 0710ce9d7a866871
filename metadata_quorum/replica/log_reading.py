"""The parts of a metadata log that the core needs, read from the log's bytes: batches, epochs and voters.
PURE.

Only headers and the records of control batches are read here. The publisher reads all other records.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from odradek.metadata_quorum.ports import MetadataLogCorrupt, ReplicatedLog, StoredSnapshot
from odradek.metadata_quorum.raft.log_state import Batch, LogState
from odradek.metadata_quorum.raft.voters import VoterSet
from odradek.metadata_quorum.replica.metadata_batches import read_batches
from odradek.wire.batches.batch_header import check_crc, parse_header
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.control_records import VotersRecord

__all__ = ["describe_batches", "read_log_state", "snapshot_voters"]

READ_BYTES = 4 << 20


def describe_batches(data: bytes, *, source: str) -> Iterator[Batch]:
    """Yield the batches in `data` in the core's form.

    Raises `KafkaError` CORRUPT_MESSAGE for anything that is not a complete, undamaged batch.
    """
    position = 0
    while position < len(data):
        header = parse_header(data, position)
        size = header.size
        if not check_crc(data, position, size) or header.last_offset < header.base_offset:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"{source}: there is no undamaged batch at position {position}"
            )
        batch = data[position : position + size]
        voters = None
        if header.is_control:
            try:
                voters = _voters_in(batch, source)
            except MetadataLogCorrupt as error:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        yield Batch(header.base_offset, header.last_offset, header.partition_leader_epoch, batch, voters)
        position += size


def _voters_in(batch: bytes, source: str) -> VoterSet | None:
    for decoded in read_batches(batch, source=source):
        for record in reversed(decoded.records):
            if isinstance(record, VotersRecord):
                return VoterSet.from_record(record)
    return None


def snapshot_voters(stored: StoredSnapshot) -> VoterSet | None:
    """Return the voters in a snapshot. Returns None if the configuration names the voters instead."""
    found = [record for record in stored.contents.control_records if isinstance(record, VotersRecord)]
    return VoterSet.from_record(found[-1]) if found else None


def read_log_state(log: ReplicatedLog, stored: StoredSnapshot | None, static_voters: VoterSet) -> LogState:
    """Read what the core needs to know of a log and its newest snapshot. Blocks.

    A snapshot that ends beyond the end of the log replaces the log. (It was fetched from a leader just before
    a crash.) Raises `MetadataLogCorrupt`, `DiskError`.
    """
    stored_voters = snapshot_voters(stored) if stored is not None else None
    first_voters = static_voters if stored_voters is None else stored_voters
    state = LogState(log.log_start_offset, log.log_start_offset, voter_history=[(-1, first_voters)])
    snapshot = stored.end if stored is not None and stored.end_offset > 0 else None
    if log.log_start_offset > (0 if snapshot is None else snapshot.offset):
        raise MetadataLogCorrupt(
            f"the metadata log begins at offset {log.log_start_offset}, but no snapshot ends at that offset"
        )
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, READ_BYTES)
        if not data:
            raise MetadataLogCorrupt(f"the metadata log has no readable batch at offset {offset}")
        try:
            for batch in describe_batches(data, source=f"metadata log from offset {offset}"):
                if batch.base_offset != state.end_offset or batch.epoch < state.last_epoch:
                    raise MetadataLogCorrupt(
                        f"the batch at offset {batch.base_offset} of epoch {batch.epoch} cannot follow "
                        f"offset {state.end_offset} of epoch {state.last_epoch}"
                    )
                state.append(attrs.evolve(batch, data=b""))
        except KafkaError as error:
            raise MetadataLogCorrupt(str(error)) from error
        offset = state.end_offset
    if snapshot is not None:
        if state.end_offset < snapshot.offset or state.epoch_of(snapshot.offset - 1) not in (
            -1,
            snapshot.epoch,
        ):
            log.install(snapshot.offset)
            state.install(snapshot, first_voters)
        else:
            state.snapshot = snapshot
            later = [each for each in state.voter_history if each[0] >= snapshot.offset]
            state.voter_history = [(snapshot.offset - 1, first_voters), *later]
    log.flush()
    state.flushed_offset = state.end_offset
    return state
