"""Encoding and decoding of record batches of the metadata log and of snapshots.

A batch contains either metadata records or control records. Metadata records come from one or several
decisions, and readers see all or none of a batch. Control records are a leader's LeaderChange, the voters,
and the header and footer of a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from odradek.metadata_quorum.ports import MetadataLogCorrupt
from odradek.wire.batches.batch_header import HEADER_SIZE, Buffer, check_crc, parse_header
from odradek.wire.batches.records import records
from odradek.wire.errors import KafkaError, ProtocolError
from odradek.wire.metadata_frames import (
    ControlRecordType,
    decode_control_record,
    decode_metadata_record,
    encode_control_record,
    encode_metadata_record,
)
from odradek.wire.record_batch import RecordBatchBuilder
from odradek.wire.structure import Message

DECOMPRESSED_BYTES_MAX = 64 << 20


@attrs.frozen
class MetadataBatch:
    """A decoded batch.

    Control records are messages of `odradek.wire.messages.control_records`; an unknown kind is None.
    """

    base_offset: int
    epoch: int
    is_control: bool
    timestamp_ms: int
    records: tuple[Message | None, ...]

    @property
    def last_offset(self) -> int:
        return self.base_offset + len(self.records) - 1


def encode_values(messages: Sequence[Message]) -> list[bytes]:
    """Encode metadata records to record values."""
    return [encode_metadata_record(message) for message in messages]


def batch_of_values(values: Sequence[bytes], base_offset: int, epoch: int, timestamp_ms: int) -> bytearray:
    """Build one batch from encoded metadata records."""
    builder = RecordBatchBuilder(base_offset=base_offset, leader_epoch=epoch)
    for value in values:
        builder.append(timestamp_ms, None, value)
    return builder.build()


def batch_of_control_records(
    messages: Sequence[Message], base_offset: int, epoch: int, timestamp_ms: int
) -> bytearray:
    """Encode control records (voters, a new leader, a snapshot's header or footer) as one batch of the metadata log."""
    builder = RecordBatchBuilder(base_offset=base_offset, leader_epoch=epoch, is_control=True)
    for message in messages:
        key, value = encode_control_record(message)
        builder.append(timestamp_ms, key, value)
    return builder.build()


def read_batches(data: Buffer, *, source: str) -> Iterator[MetadataBatch]:
    """Decode the batches in `data`, and verify their checksums.

    Raises `MetadataLogCorrupt`, with `source` and the position, for anything that is not a complete,
    undamaged batch of metadata or control records.
    """
    position = 0
    while position < len(data):
        try:
            batch, size = _read_batch(data, position)
        except (KafkaError, ProtocolError) as error:
            raise MetadataLogCorrupt(
                f"{source}: the batch at position {position} is damaged: {error}"
            ) from error
        yield batch
        position += size


def _read_batch(data: Buffer, position: int) -> tuple[MetadataBatch, int]:
    header = parse_header(data, position)
    messages: list[Message | None] = []
    for record in records(data, position, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
        if header.is_control:
            kind, message = decode_control_record(record.key or b"", record.value or b"")
            messages.append(None if kind is ControlRecordType.UNKNOWN else message)
        else:
            messages.append(decode_metadata_record(record.value or b""))
    if header.last_offset - header.base_offset + 1 != len(messages):
        raise MetadataLogCorrupt(
            f"the batch at offset {header.base_offset} ends at offset {header.last_offset}, "
            f"but has {len(messages)} records"
        )
    batch = MetadataBatch(
        header.base_offset,
        header.partition_leader_epoch,
        header.is_control,
        header.max_timestamp,
        tuple(messages),
    )
    return batch, header.size


def is_whole_batch(data: Buffer, position: int) -> int | None:
    """Return the size of the complete, undamaged batch at `position`; None if there is none."""
    try:
        header = parse_header(data, position)
    except KafkaError:
        return None
    if header.size < HEADER_SIZE or position + header.size > len(data):
        return None
    return header.size if check_crc(data, position, header.size) else None
