"""Builds and parses the markers that end transactions: control batches of one record (KIP-98, "Control
Messages").

The record's key is a version (int16, 0) and a type (int16: 0 abort, 1 commit). Its value is a version (int16,
0) and the epoch of the coordinator (int32). The batch has the producer's id and epoch, and no sequence
number.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from odradek.wire.batches.batch_header import Buffer
from odradek.wire.batches.records import RecordBatchBuilder, records
from odradek.wire.errors import KafkaError

__all__ = ["EndMarker", "build_marker", "parse_marker"]

ABORT, COMMIT = 0, 1
_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_BYTES_MAX = 4096
UNREADABLE_EPOCH = -1


class EndMarker(NamedTuple):
    """The content of a transaction's end marker. `coordinator_epoch` is -1 if it could not be read."""

    is_abort: bool
    coordinator_epoch: int


def build_marker(
    producer_id: int, producer_epoch: int, coordinator_epoch: int, *, is_commit: bool, timestamp_ms: int
) -> bytearray:
    """Build the batch that commits or aborts a producer's transaction, as Kafka's
    `MemoryRecords.withEndTransactionMarker` does.
    """
    builder = RecordBatchBuilder(
        producer_id=producer_id, producer_epoch=producer_epoch, is_transactional=True, is_control=True
    )
    key = _KEY.pack(0, COMMIT if is_commit else ABORT)
    builder.append(timestamp_ms, key, _VALUE.pack(0, coordinator_epoch))
    return builder.build()


def parse_marker(batch: Buffer) -> EndMarker | None:
    """Parse the marker in a transactional control batch; None if compaction has left the batch without
    records.

    An unreadable marker counts as a commit: only a readable abort marker makes the records of its transaction
    void.
    """
    try:
        found = records(batch, decompressed_bytes_max=_BYTES_MAX, crc=False)
    except (KafkaError, ValueError):
        return EndMarker(False, UNREADABLE_EPOCH)
    if not found:
        return None
    key, value = found[0].key, found[0].value
    is_abort = key is not None and len(key) >= _KEY.size and _KEY.unpack_from(key)[1] == ABORT
    epoch = UNREADABLE_EPOCH
    if value is not None and len(value) >= _VALUE.size:
        epoch = _VALUE.unpack_from(value)[1]
    return EndMarker(is_abort, epoch)
