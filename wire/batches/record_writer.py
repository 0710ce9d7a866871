"""Writes a whole batch of records at once: the producer's hot loop.

`odradek.wire.batches.records.RecordBatchBuilder` takes records one by one. Here all records are given at
once, so that one loop encodes them without a call per record. Both write the same bytes
(tests/wire/batches/test_record_writer.py). `stamp` writes the producer's numbers into a finished batch. It is
called again if the batch is sent again with other numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from odradek.wire.batches.batch_header import (
    HEADER,
    HEADER_SIZE,
    MAGIC,
    SIZE_PREFIX,
    TRANSACTIONAL_MASK,
    seal,
    set_producer,
)
from odradek.wire.batches.compression import compress
from odradek.wire.batches.records import Header, varint

__all__ = ["Row", "encode_batch", "stamp"]

Row: TypeAlias = tuple[int, bytes | None, bytes | None, Sequence[Header]]
"""A record before it gets an offset: timestamp in ms, key, value, headers."""

_TABLE = tuple(varint(number) for number in range(1024))
_TABLE_SIZE = len(_TABLE)
_NULL = varint(-1)
_NO_HEADERS = varint(0)


def encode_batch(
    rows: Sequence[Row],
    *,
    compression_type: int = 0,
    compression_level: int | None = None,
    is_transactional: bool = False,
) -> bytearray:
    """Encode a batch of these records (at least one), still without the producer's numbers and the checksum.
    Call `stamp` before sending it.
    """
    body = _encode_rows(rows)
    payload = compress(compression_type, body, compression_level) if compression_type else body
    batch = bytearray(
        HEADER.pack(
            0,
            HEADER_SIZE - SIZE_PREFIX + len(payload),
            -1,
            MAGIC,
            0,
            compression_type | (is_transactional and TRANSACTIONAL_MASK),
            len(rows) - 1,
            rows[0][0],
            max(row[0] for row in rows),
            -1,
            -1,
            -1,
            len(rows),
        )
    )
    batch += payload
    return batch


def stamp(batch: bytearray, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Write the producer's id, epoch and first sequence number, and then the checksum, into `batch`. Pass -1,
    -1, -1 if the producer is not idempotent.
    """
    set_producer(batch, producer_id, producer_epoch, base_sequence)
    seal(batch)


def _encode_rows(rows: Sequence[Row]) -> bytes:
    """Encode the records one after another. Lengths below 1024 come from a table, so most records need no
    varint call.
    """
    table = _TABLE
    end = _TABLE_SIZE
    parts: list[bytes] = []
    base_timestamp = rows[0][0]
    for position, (timestamp, key, value, headers) in enumerate(rows):
        delta = timestamp - base_timestamp
        head = table[delta] if 0 <= delta < end else varint(delta)
        head += table[position] if position < end else varint(position)
        if key is None:
            head += _NULL
        else:
            size = len(key)
            head += (table[size] if size < end else varint(size)) + key
        if value is None:
            head += _NULL
            value = b""
        else:
            size = len(value)
            head += table[size] if size < end else varint(size)
        tail = _encode_headers(headers) if headers else _NO_HEADERS
        size = 1 + len(head) + len(value) + len(tail)
        parts += (table[size] if size < end else varint(size), b"\0", head, value, tail)
    return b"".join(parts)


def _encode_headers(headers: Sequence[Header]) -> bytes:
    parts = [varint(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += (varint(len(encoded)), encoded)
        if value is None:
            parts.append(_NULL)
        else:
            parts += (varint(len(value)), value)
    return b"".join(parts)
