"""Reads committed batches and snapshots of the metadata log from the controller that leads the quorum. The
functions are operations. PURE.

The reader fetches without a replica id, as a consumer does, and the leader answers up to the end of its log.
Records beyond the high watermark may still be lost, so the reader leaves them out. If the log begins after
the requested offset, the answer names a snapshot, which is read in chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from odradek.client.admin.admin_quorum import METADATA_TOPIC
from odradek.client.core.operation import Operation
from odradek.client.core.requests import request
from odradek.client.core.scatter import deadline_of
from odradek.client.errors import broker_error
from odradek.wire.batches.batch_header import HEADER_SIZE, parse_header
from odradek.wire.batches.records import records
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.metadata_frames import UnknownRecord, decode_control_record, decode_metadata_record
from odradek.wire.structure import Message

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore

__all__ = [
    "LogBatch",
    "MetadataRead",
    "SnapshotName",
    "batches_in",
    "read_metadata",
    "read_metadata_snapshot",
]

_METADATA_TOPIC_ID = bytes(15) + b"\x01"
_CHUNK_BYTES = 1 << 20
_SNAPSHOT_BYTES_MAX = 1 << 30
_BATCH_BYTES_MAX = 64 << 20


@attrs.frozen
class LogBatch:
    """A batch of the metadata log, with its time and the epoch of the leader that wrote it. A record of an
    unknown type is None.
    """

    offset: int
    next_offset: int
    epoch: int
    time_ms: int
    records: tuple[Message | None, ...]


@attrs.frozen
class SnapshotName:
    """The name of a snapshot, which holds all records before `end_offset`."""

    end_offset: int
    epoch: int


@attrs.frozen
class MetadataRead:
    """The content of an answer: committed batches, or the name of the snapshot that must be read first."""

    batches: tuple[LogBatch, ...]
    high_watermark: int
    snapshot: SnapshotName | None


def read_metadata(
    core: ClientCore, offset: int, *, wait_ms: int = 0, timeout: float | None = None
) -> Operation[MetadataRead]:
    """Read the committed batches from `offset` on. The core must be connected to the quorum's leader. The leader
    waits up to `wait_ms` for new batches.

    Raises `KafkaError` (NOT_LEADER_OR_FOLLOWER: find the leader again) and `ClientError`.
    """
    from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

    partition = FetchPartition(fetch_offset=offset, partition_max_bytes=_CHUNK_BYTES)
    message = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=_CHUNK_BYTES,
        topics=[FetchTopic(METADATA_TOPIC, _METADATA_TOPIC_ID, [partition])],
    )
    response = yield from request(core, message, timeout=deadline_of(core, timeout) - core.now)
    if response.error_code:
        raise broker_error(response.error_code, None, "metadata log")
    try:
        found = response.responses[0].partitions[0]
    except IndexError:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR, "the controller's answer about the metadata log is empty"
        ) from None
    if found.error_code:
        raise broker_error(found.error_code, None, "metadata log")
    if found.snapshot_id.end_offset >= 0:
        return MetadataRead(
            (), found.high_watermark, SnapshotName(found.snapshot_id.end_offset, found.snapshot_id.epoch)
        )
    batches = tuple(batch for batch in batches_in(bytes(found.records or b"")) if offset < batch.next_offset)
    committed = tuple(batch for batch in batches if batch.next_offset <= found.high_watermark)
    return MetadataRead(committed, found.high_watermark, None)


def read_metadata_snapshot(
    core: ClientCore, snapshot: SnapshotName, leader_epoch: int, *, timeout: float | None = None
) -> Operation[list[LogBatch]]:
    """Read the batches of a snapshot. Raises `KafkaError` (SNAPSHOT_NOT_FOUND: there is a newer one) and
    `ClientError`.
    """
    from odradek.wire.messages.fetch_snapshot import (
        FetchSnapshotRequest,
        FetchSnapshotRequestPartitionSnapshot,
        FetchSnapshotRequestTopicSnapshot,
        SnapshotId,
    )

    data = bytearray()
    while True:
        wanted = FetchSnapshotRequestPartitionSnapshot(
            0, leader_epoch, SnapshotId(snapshot.end_offset, snapshot.epoch), len(data)
        )
        message = FetchSnapshotRequest(
            max_bytes=_CHUNK_BYTES, topics=[FetchSnapshotRequestTopicSnapshot(METADATA_TOPIC, [wanted])]
        )
        response = yield from request(core, message, timeout=deadline_of(core, timeout) - core.now)
        if response.error_code:
            raise broker_error(response.error_code, None, "metadata snapshot")
        try:
            found = response.topics[0].partitions[0]
        except IndexError:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, "the controller's answer about the metadata snapshot is empty"
            ) from None
        if found.error_code:
            raise broker_error(found.error_code, None, "metadata snapshot")
        chunk = bytes(found.unaligned_records or b"")
        data += chunk
        if len(data) >= found.size:
            return list(batches_in(bytes(data)))
        if not chunk or found.size > _SNAPSHOT_BYTES_MAX:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the metadata snapshot does not end")


def batches_in(data: bytes) -> Iterator[LogBatch]:
    """Yield the complete batches in these bytes. Raises `KafkaError` CORRUPT_MESSAGE."""
    position = 0
    while len(data) - position >= HEADER_SIZE:
        header = parse_header(data, position)
        if position + header.size > len(data):
            return
        found: list[Message | None] = []
        for record in records(data, position, decompressed_bytes_max=_BATCH_BYTES_MAX):
            try:
                if header.is_control:
                    found.append(decode_control_record(record.key or b"", record.value or b"")[1])
                else:
                    found.append(decode_metadata_record(record.value or b""))
            except UnknownRecord:
                # A newer version of the cluster's software has written this record. The other records are
                # still valid.
                found.append(None)
        yield LogBatch(
            header.base_offset,
            header.next_offset,
            header.partition_leader_epoch,
            header.max_timestamp,
            tuple(found),
        )
        position += header.size
