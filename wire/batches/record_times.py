"""Reads offsets and timestamps of a batch's records, for callers that search for a time and do not need the
records.

Only these two numbers of a record are decoded. Compressed batches are decompressed as far as the caller
iterates, a chunk at a time. Keys, values and headers are skipped, so faults inside them are not noticed.

`newest_timestamp` finds only the newest timestamp, and is three times as fast. This matters because a segment
may have millions of records.
"""

from __future__ import annotations

from collections.abc import Iterator

from odradek.wire.batches.batch_errors import CorruptBatch, InvalidRecord
from odradek.wire.batches.batch_header import HEADER_SIZE, BatchHeader, Buffer, check_crc, parse_header
from odradek.wire.batches.compression import decompressed_chunks
from odradek.wire.batches.records import RECORD_SIZE_MIN, read_varint

__all__ = ["newest_timestamp", "record_times"]

_HEAD_BYTES_MAX = 31
"""The most bytes of the first fields of a record. They are length, timestamp delta and offset delta, of at
most ten bytes each, and the attributes, one byte.
"""
_SMALLEST = -(1 << 63)


def record_times(buf: Buffer, *, records_max: int, decompressed_bytes_max: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, timestamp in milliseconds) of each record of the batch in `buf`, in order.

    A fault is raised at the latest when the iteration reaches it:
        CorruptBatch: the batch is cut, its checksum is wrong, or it does not decompress.
        DecompressionBomb: the batch decompresses to more than `decompressed_bytes_max` bytes.
        InvalidRecord: there are more than `records_max` records, or they contradict the header or themselves.
        KafkaError: UNSUPPORTED_COMPRESSION_TYPE.
    """
    header = _checked_header(buf, records_max, decompressed_bytes_max)
    body = memoryview(buf)[HEADER_SIZE : header.size]
    chunks = decompressed_chunks(header.compression_type, body, decompressed_bytes_max)
    append_time = header.max_timestamp if header.timestamp_type else None
    return _walk(chunks, header.record_count, header.base_offset, header.base_timestamp, append_time)


def newest_timestamp(buf: Buffer, *, records_max: int, decompressed_bytes_max: int) -> int:
    """Find the largest timestamp, in milliseconds, of the records of the batch in `buf`. The largest
    timestamp in its header is not trusted.

    If the batch has no records, or has LogAppendTime, the header's timestamp is returned. Raises as
    `record_times`.
    """
    header = _checked_header(buf, records_max, decompressed_bytes_max)
    count = header.record_count
    if not count or header.timestamp_type:
        return header.max_timestamp
    body = memoryview(buf)[HEADER_SIZE : header.size]
    chunks = decompressed_chunks(header.compression_type, body, decompressed_bytes_max)
    return header.base_timestamp + _largest_delta(chunks, count)


def _checked_header(buf: Buffer, records_max: int, decompressed_bytes_max: int) -> BatchHeader:
    """Read and check a batch's header. Raises if the batch is cut or its checksum wrong, or if it has more
    records than allowed.
    """
    header = parse_header(buf)
    if header.size > len(buf):
        raise CorruptBatch(
            f"the record batch is cut off: only {len(buf)} of its {header.size} bytes are there"
        )
    if not check_crc(buf, 0, header.size):
        raise CorruptBatch("the checksum of the record batch is wrong")
    count = header.record_count
    if not 0 <= count <= records_max or count * RECORD_SIZE_MIN > decompressed_bytes_max:
        raise InvalidRecord(f"the batch has {count} records, but at most {records_max} may be parsed")
    return header


def _largest_delta(chunks: Iterator[Buffer], count: int) -> int:
    """Find the largest timestamp delta of the next `count` records (at least one). Varints are inlined: calls
    would take most of the time.
    """
    largest = _SMALLEST
    data = b""
    position, left, is_end = 0, count, False
    while left:
        # If a record begins below `safe`, its fields up to the offset delta are completely in `data`.
        safe = len(data) if is_end else len(data) - _HEAD_BYTES_MAX
        try:
            while left and position < safe:
                if (low := data[position]) < 0x80:
                    length, position = (low >> 1) ^ -(low & 1), position + 1
                elif (high := data[position + 1]) < 0x80:
                    length, position = (low & 0x7F | high << 7) >> 1 ^ -(low & 1), position + 2
                else:
                    length, position = read_varint(data, position)
                end = position + length
                if (low := data[position + 1]) < 0x80:
                    delta, position = (low >> 1) ^ -(low & 1), position + 2
                elif (high := data[position + 2]) < 0x80:
                    delta, position = (low & 0x7F | high << 7) >> 1 ^ -(low & 1), position + 3
                else:
                    delta, position = read_varint(data, position + 1)
                if end <= position:
                    raise InvalidRecord(
                        f"a record claims a length of {length} bytes, less than its fixed fields need"
                    )
                if delta > largest:
                    largest = delta
                position = end
                left -= 1
        except IndexError:
            raise InvalidRecord("a record is longer than the batch that holds it") from None
        if not left:
            break
        more = None if is_end else next(chunks, None)
        if more is not None:
            data, position = (
                (bytes(more), position - len(data))
                if position >= len(data)
                else (data[position:] + bytes(more), 0)
            )
        elif is_end:
            raise InvalidRecord("a record is longer than the batch that holds it")
        else:
            is_end = True
    if position > len(data) and position > len(data) + sum(map(len, chunks)):
        raise InvalidRecord("a record is longer than the batch that holds it")
    return largest


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
            raise InvalidRecord("a record is longer than the batch that holds it") from None
        end = start + length
        if end < position:
            raise InvalidRecord(
                f"a record claims a length of {length} bytes, less than its fixed fields need"
            )
        yield base_offset + delta, base_timestamp + timestamp if append_time is None else append_time
        while end > len(data):
            end -= len(data)
            more = next(chunks, None)
            if more is None:
                raise InvalidRecord("a record is longer than the batch that holds it")
            data = more
        position = end
