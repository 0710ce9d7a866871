"""A slow and simple reader of a batch's records, with which all record parsers are compared."""

from __future__ import annotations

import io

from odradek.wire.batches.batch_errors import InvalidRecord
from odradek.wire.batches.batch_header import HEADER_SIZE, parse_header
from odradek.wire.batches.compression import decompress
from odradek.wire.batches.records import Record


def oracle_records(batch: bytes | bytearray, bytes_max: int, key_errors: str = "strict") -> list[Record]:
    """Return all records of a batch whose checksum is right. Raises `InvalidRecord` if a record is invalid."""
    header = parse_header(batch)
    body = memoryview(batch)[HEADER_SIZE : header.size]
    stream = io.BytesIO(decompress(header.compression_type, body, bytes_max))
    found: list[Record] = []
    delta_last = -1
    if header.record_count < 0:
        raise InvalidRecord("a negative count")
    for _ in range(header.record_count):
        record = io.BytesIO(_bytes(stream, _number(stream)))
        _bytes(record, 1)  # attributes, which have no meaning yet
        timestamp_delta = _number(record)
        delta = _number(record)
        if not delta_last < delta <= header.last_offset_delta:
            raise InvalidRecord("an offset delta that does not grow, or is beyond the last")
        delta_last = delta
        key = _nullable(record)
        value = _nullable(record)
        headers = _headers(record, key_errors)
        if record.read():
            raise InvalidRecord("bytes behind the headers")
        timestamp = header.max_timestamp if header.timestamp_type else header.base_timestamp + timestamp_delta
        found.append(Record(header.base_offset + delta, timestamp, key, value, headers))
    if stream.read():
        raise InvalidRecord("bytes behind the last record")
    return found


def _headers(record: io.BytesIO, key_errors: str) -> tuple[tuple[str, bytes | None], ...]:
    count = _number(record)
    if count < 0:
        raise InvalidRecord("a negative count of headers")
    headers = []
    for _ in range(count):
        key = _bytes(record, _number(record))
        try:
            text = key.decode(errors=key_errors)
        except UnicodeDecodeError:
            raise InvalidRecord("a key that is no text") from None
        headers.append((text, _nullable(record)))
    return tuple(headers)


def _number(stream: io.BytesIO) -> int:
    """Read a number as Protocol Buffers write an sint64: zigzag, seven bits in each byte, the lowest first."""
    number = 0
    for place in range(10):
        (byte,) = _bytes(stream, 1)
        number += (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            if number >= 1 << 64:
                raise InvalidRecord("more than 64 bits")
            return number // 2 if number % 2 == 0 else -(number // 2) - 1
    raise InvalidRecord("more than ten bytes")


def _bytes(stream: io.BytesIO, size: int) -> bytes:
    if size < 0:
        raise InvalidRecord("a negative length")
    found = stream.read(min(size, 1 << 30))
    if len(found) < size:
        raise InvalidRecord("the bytes end too early")
    return found


def _nullable(stream: io.BytesIO) -> bytes | None:
    size = _number(stream)
    return None if size == -1 else _bytes(stream, size)
