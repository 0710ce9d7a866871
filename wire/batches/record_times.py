"""Offsets and timestamps of a batch's records, one by one: for searches by time, which need no records.

Nothing of a record is made but the two numbers. Compressed batches are decompressed as far as the caller asks, a
chunk at a time. Keys, values and headers are skipped, so errors inside them go unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator

from odradek.wire.batches.batch_errors import CorruptBatch, InvalidRecord
from odradek.wire.batches.batch_header import HEADER_SIZE, Buffer, check_crc, parse_header
from odradek.wire.batches.compression import decompressed_chunks
from odradek.wire.batches.records import RECORD_SIZE_MIN, read_varint

__all__ = ["record_times"]

_HEAD_BYTES_MAX = 31
"""Length, attributes, timestamp delta and offset delta: three numbers of ten bytes at most, and one byte."""


def record_times(buf: Buffer, *, records_max: int, decompressed_bytes_max: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, timestamp in milliseconds) of each record of the batch in `buf`, in order.

    Raises, at the latest where the iteration comes to it:
        CorruptBatch: it is cut, its checksum is wrong, or it does not decompress.
        DecompressionBomb: it decompresses to more than `decompressed_bytes_max`.
        InvalidRecord: there are more than `records_max`, or they contradict the header or themselves.
        KafkaError: UNSUPPORTED_COMPRESSION_TYPE.
    """
    header = parse_header(buf)
    if header.size > len(buf):
        raise CorruptBatch(f"batch of {header.size} bytes is cut at {len(buf)}")
    if not check_crc(buf, 0, header.size):
        raise CorruptBatch("batch checksum is wrong")
    count = header.record_count
    if not 0 <= count <= records_max or count * RECORD_SIZE_MIN > decompressed_bytes_max:
        raise InvalidRecord(f"batch of {count} records where {records_max} may be parsed")
    body = memoryview(buf)[HEADER_SIZE : header.size]
    chunks = decompressed_chunks(header.compression_type, body, decompressed_bytes_max)
    append_time = header.max_timestamp if header.timestamp_type else None
    return _walk(chunks, count, header.base_offset, header.base_timestamp, append_time)


def _walk(
    chunks: Iterator[Buffer], count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> Iterator[tuple[int, int]]:
    data: Buffer = b""
    position = 0
    for _ in range(count):
        while len(data) - position < _HEAD_BYTES_MAX:
            more = next(chunks, None)
            if more is None:
                break
            data = more if position == len(data) else bytes(data[position:]) + more
            position = 0
        try:
            length, position = read_varint(data, position)
            start = position
            timestamp, position = read_varint(data, position + 1)
            delta, position = read_varint(data, position)
        except IndexError:
            raise InvalidRecord("a record is longer than its batch") from None
        end = start + length
        if end < position:
            raise InvalidRecord(f"record of {length} bytes is shorter than its own head")
        yield base_offset + delta, base_timestamp + timestamp if append_time is None else append_time
        while end > len(data):
            end -= len(data)
            more = next(chunks, None)
            if more is None:
                raise InvalidRecord("a record is longer than its batch")
            data = more
        position = end
