"""Records inside a batch: a builder that writes them and a parser that reads them.

Both are on the client's hot path (one record at a time), so the varints are inlined. Lengths below 64 take
one byte, and lengths below 8192 take two. A function encodes longer lengths.

`parse_fields` is the only loop that parses records one by one. It makes no record objects. `records` and the
consumer make objects of their own classes from the fields, with functions written in C.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any, NamedTuple

import attrs

from odradek.wire.batches.batch_errors import CorruptBatch, InvalidRecord
from odradek.wire.batches.batch_header import (
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    NO_TIMESTAMP,
    SIZE_PREFIX,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    Buffer,
    check_crc,
    parse_header,
    seal,
)
from odradek.wire.batches.compression import compress, decompress

__all__ = [
    "HEADERS_ANY",
    "RECORD_SIZE_MIN",
    "Header",
    "Record",
    "RecordBatchBuilder",
    "empty_batch",
    "parse_fields",
    "read_varint",
    "records",
]

Header = tuple[str, bytes | None]

RECORD_SIZE_MIN = 7
"""The fewest bytes that a record can have: one byte each for the length, the attributes, two deltas, two lengths and
the number of headers.
"""


HEADERS_ANY = 1 << 31
"""More headers than a record can have."""


class Record(NamedTuple):
    """One record. `timestamp` is in milliseconds since 1970; a record whose `value` is None is a tombstone."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


# --- writing ---------------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    """Encode a number as a zigzag varint. Numbers of 32 and of 64 bits have the same encoding."""
    number = (number << 1) ^ (number >> 63)
    if 0x7F < number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_SMALL = tuple(varint(number) for number in range(1024))
_SMALL_MAX = len(_SMALL)
_NULL = varint(-1)


def _headers(headers: Iterable[Header]) -> bytes:
    pairs = list(headers)
    parts = [varint(len(pairs))]
    for key, value in pairs:
        name = key.encode()
        size = len(name)
        parts += (_SMALL[size] if size < _SMALL_MAX else varint(size), name)
        if value is None:
            parts.append(_NULL)
        else:
            size = len(value)
            parts += (_SMALL[size] if size < _SMALL_MAX else varint(size), value)
    return b"".join(parts)


@attrs.define
class RecordBatchBuilder:
    """Collects records into one batch.

    `append` takes about half a microsecond. `build` compresses and computes the checksum; it does not change
    the builder. `compression_level` None means the codec's default. `delete_horizon_ms` marks a batch of a
    compacted log whose tombstones may be removed from that time on (KIP-534).
    """

    base_offset: int = 0
    compression_type: int = 0
    timestamp_type: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    is_transactional: bool = False
    is_control: bool = False
    leader_epoch: int = -1
    compression_level: int | None = None
    delete_horizon_ms: int | None = None

    record_count: int = attrs.field(default=0, init=False)
    max_timestamp: int = attrs.field(default=NO_TIMESTAMP, init=False)
    _base_timestamp: int = attrs.field(default=NO_TIMESTAMP, init=False)
    _last_offset: int = attrs.field(default=0, init=False)
    _body: bytearray = attrs.field(factory=bytearray, init=False, repr=False)

    @classmethod
    def like(
        cls, header: BatchHeader, *, compression_type: int = 0, delete_horizon_ms: int | None = None
    ) -> RecordBatchBuilder:
        """Make a builder for a batch that keeps another batch's base offset, timestamp type, producer, leader
        epoch and kind (transactional, control).
        """
        return cls(
            header.base_offset,
            compression_type,
            header.timestamp_type,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.is_transactional,
            header.is_control,
            header.partition_leader_epoch,
            delete_horizon_ms=delete_horizon_ms,
        )

    def __attrs_post_init__(self) -> None:
        self._last_offset = self.base_offset - 1
        if self.delete_horizon_ms is not None:
            self._base_timestamp = self.delete_horizon_ms

    @property
    def size_estimate(self) -> int:
        """The number of bytes of the batch before compression."""
        return HEADER_SIZE + len(self._body)

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[Header] = (),
        offset: int | None = None,
    ) -> int:
        """Add a record and return its offset: `offset`, or by default the offset that follows the last
        record's. With `offset`, gaps are possible, as a compacted batch has them.

        Raises:
            ValueError: `offset` is not above the last record's.
        """
        if offset is None:
            offset = self._last_offset + 1
        elif offset <= self._last_offset:
            raise ValueError(
                f"the record's offset {offset} must be above the previous record's offset {self._last_offset}"
            )
        self._last_offset = offset
        if not self.record_count:
            if self.delete_horizon_ms is None:
                self._base_timestamp = timestamp
            self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.record_count += 1
        delta = timestamp - self._base_timestamp
        position = offset - self.base_offset
        if key is None:
            key_size, key = _NULL, b""
        else:
            size = len(key)
            key_size = _SMALL[size] if size < _SMALL_MAX else varint(size)
        if value is None:
            value_size, value = _NULL, b""
        else:
            size = len(value)
            value_size = _SMALL[size] if size < _SMALL_MAX else varint(size)
        record = b"".join(
            (
                b"\0",
                _SMALL[delta] if 0 <= delta < _SMALL_MAX else varint(delta),
                _SMALL[position] if position < _SMALL_MAX else varint(position),
                key_size,
                key,
                value_size,
                value,
                _headers(headers) if headers else b"\0",
            )
        )
        size = len(record)
        body = self._body
        body += _SMALL[size] if size < _SMALL_MAX else varint(size)
        body += record
        return offset

    def build(self, last_offset: int | None = None) -> bytearray:
        """Build the bytes of the batch. For a compacted batch, `last_offset` may be above the last record's,
        so that the batch covers the same offsets as before.

        Raises:
            ValueError: `last_offset` is below the last record's offset, or is missing although there are no
                records.
        """
        if last_offset is None:
            if not self.record_count:
                raise ValueError("a batch without records must be given its last offset")
            last_offset = self._last_offset
        elif last_offset < self._last_offset or last_offset < self.base_offset:
            raise ValueError(f"the batch's last offset {last_offset} is below the offset of its last record")
        codec = self.compression_type if self.record_count else 0
        payload: Buffer = self._body
        if codec:
            payload = compress(codec, payload, self.compression_level)
        attributes = (
            codec
            | (self.timestamp_type and TIMESTAMP_TYPE_MASK)
            | (self.is_transactional and TRANSACTIONAL_MASK)
            | (self.is_control and CONTROL_MASK)
            | (self.delete_horizon_ms is not None and DELETE_HORIZON_MASK)
        )
        header = BatchHeader(
            self.base_offset,
            HEADER_SIZE - SIZE_PREFIX + len(payload),
            self.leader_epoch,
            MAGIC,
            0,
            attributes,
            last_offset - self.base_offset,
            self._base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        )
        batch = bytearray(HEADER.pack(*header))
        batch += payload
        seal(batch)
        return batch


# --- reading ---------------------------------------------------------------------------------------------


def empty_batch(header: BatchHeader) -> bytearray:
    """Make a batch with the fields of this header, but without records, as Kafka does
    (`DefaultRecordBatch.writeEmptyHeader`).

    Offsets, producer, epoch and newest timestamp stay.
    """
    builder = RecordBatchBuilder.like(header)
    builder.max_timestamp = header.max_timestamp
    return builder.build(last_offset=header.last_offset)


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Read a zigzag number of up to ten bytes and 64 bits. Returns the number and the position behind it.

    Raises:
        InvalidRecord: the number is longer.
        IndexError: the number is cut.
    """
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> 64:
                raise InvalidRecord("a variable-length number has more than 64 bits")
            return (number >> 1) ^ -(number & 1), position
        shift += 7
        if shift > 63:
            raise InvalidRecord("a variable-length number has more than ten bytes")


def records(
    buf: Buffer,
    offset: int = 0,
    *,
    decompressed_bytes_max: int,
    crc: bool = True,
    key_errors: str = "strict",
) -> list[Record]:
    """Parse the batch at `offset`; keys and values are copied out of `buf`. For `key_errors` see
    `parse_fields`.

    Raises:
        CorruptBatch: the batch is cut, its checksum is wrong (unless `crc` is false), or it does not
            decompress.
        DecompressionBomb: the batch decompresses to more than `decompressed_bytes_max` bytes.
        InvalidRecord: its records contradict its header or themselves.
        KafkaError: UNSUPPORTED_COMPRESSION_TYPE.
    """
    header = parse_header(buf, offset)
    end = offset + header.size
    if end > len(buf):
        raise CorruptBatch(
            f"the record batch is cut off: only {len(buf) - offset} of its {header.size} bytes are there"
        )
    if crc and not check_crc(buf, offset, header.size):
        raise CorruptBatch("the checksum of the record batch is wrong")
    body = memoryview(buf)[offset + HEADER_SIZE : end]
    data = decompress(header.compression_type, body, decompressed_bytes_max)
    count = header.record_count
    if count < 0 or count * RECORD_SIZE_MIN > len(data):
        raise InvalidRecord(f"the batch claims {count} records, too many for its {len(data)} bytes")
    fields: list[Any] = []
    try:
        position, _ = parse_fields(fields, data, 0, count, 0, header, key_errors=key_errors)
    except IndexError:
        raise InvalidRecord("a record is longer than the batch that holds it") from None
    if position != len(data):
        raise InvalidRecord(
            f"{len(data) - position} unexpected bytes follow the last of the batch's {count} records"
        )
    field = iter(fields)
    return list(map(tuple.__new__, repeat(Record), zip(field, field, field, field, field, strict=True)))


def parse_fields(
    fields: list[Any],
    data: bytes,
    position: int,
    count: int,
    due: int,
    header: BatchHeader,
    *,
    key_errors: str,
    headers_max: int = HEADERS_ANY,
) -> tuple[int, int]:
    """Append offset, timestamp, key, value and headers of `count` records to `fields`, one record after the
    other.

    `position` is the position of the first record in `data`, the decompressed bytes. `due` is twice the least
    offset delta that the first record may have. At the first call it is zero; at later calls it is the value
    that the previous call returned. Returns the position at which the last record ends, and `due` for the
    next call. If a record is wrong, `fields` has all records before it. `key_errors` is the error handler of
    `bytes.decode` for a header's key that is no UTF-8. A record with more than `headers_max` headers is wrong.

    Raises:
        InvalidRecord: a record contradicts the batch's header or itself.
        IndexError: the bytes end before the last record does.
    """
    # A slice beyond the end of the data is silently too short. So at the end of each record, the position is
    # compared with the record's length. Numbers stay in zigzag form where possible. In this form an even
    # number is twice its value, and 1 stands for -1, which means null.
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.timestamp_type else None
    due_max = 2 * header.last_offset_delta
    base_offset = header.base_offset
    offset = base_offset + (due >> 1) - 1
    for _ in range(count):
        byte = data[position]
        if byte < 0x80:
            end = position + 1 + (byte >> 1)
            position += 3
        elif (high := data[position + 1]) < 0x80:
            byte = byte & 0x7F | high << 7
            end = position + 2 + (byte >> 1)
            position += 4
        else:
            size, position = read_varint(data, position)
            byte = size << 1 if size >= 0 else 1
            end = position + size
            position += 2
        if byte & 1:
            raise InvalidRecord("a record has a negative length")

        byte = data[position - 1]
        if byte < 0x80:
            timestamp = base_timestamp + ((byte >> 1) ^ -(byte & 1))
        elif (high := data[position]) < 0x80:
            byte = byte & 0x7F | high << 7
            timestamp = base_timestamp + ((byte >> 1) ^ -(byte & 1))
            position += 1
        else:
            timestamp, position = read_varint(data, position - 1)
            timestamp += base_timestamp

        # Without a gap before this record, its offset delta in zigzag form is `due`. Only compaction leaves
        # gaps.
        byte = data[position]
        position += 1
        if byte >= 0x80:
            if (high := data[position]) < 0x80:
                byte = byte & 0x7F | high << 7
                position += 1
            else:
                size, position = read_varint(data, position - 1)
                byte = size << 1 if size >= 0 else 1
        if byte != due or byte > due_max:
            if byte & 1 or not due <= byte <= due_max:
                raise InvalidRecord(
                    f"a record's offset delta is not in the range from {due >> 1} to {due_max >> 1}"
                )
            due = byte
            offset = base_offset + (due >> 1)
        else:
            offset += 1
        due += 2

        byte = data[position]
        position += 1
        if byte == 1:
            key = None
        else:
            if byte < 0x80:
                size = byte >> 1 if not byte & 1 else -2
            else:
                size, position = read_varint(data, position - 1)
            if size >= 0:
                key = data[position : position + size]
                position += size
            elif size == -1:
                key = None
            else:
                raise InvalidRecord("a record's key has a negative length")

        byte = data[position]
        position += 1
        if byte == 1:
            value = None
        else:
            if byte < 0x80:
                size = byte >> 1 if not byte & 1 else -2
            elif (high := data[position]) < 0x80:
                byte = byte & 0x7F | high << 7
                size = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                size, position = read_varint(data, position - 1)
            if size >= 0:
                value = data[position : position + size]
                position += size
            elif size == -1:
                value = None
            else:
                raise InvalidRecord("a record's value has a negative length")

        headers: tuple[Header, ...] = ()
        if data[position]:
            headers, position = _parse_headers(data, position, key_errors, headers_max)
        else:
            position += 1
        if position != end:
            raise InvalidRecord(f"a record's fields exceed the record's length by {position - end} bytes")
        fields += (offset, timestamp if append_time is None else append_time, key, value, headers)
    return position, due


def _parse_headers(
    data: bytes, position: int, key_errors: str, headers_max: int
) -> tuple[tuple[Header, ...], int]:
    count, position = read_varint(data, position)
    if count < 0:
        raise InvalidRecord(f"a record claims an impossible number of headers: {count}")
    if count > headers_max:
        raise InvalidRecord(f"a record has {count} headers, and at most {headers_max} are read here")
    headers: list[Header] = []
    for _ in range(count):
        byte = data[position]
        position += 1
        if byte < 0x80:
            size = (byte >> 1) ^ -(byte & 1)
        else:
            size, position = read_varint(data, position - 1)
        if size < 0:
            raise InvalidRecord("a record has a header without a key")
        try:
            key = data[position : position + size].decode(errors=key_errors)
        except UnicodeDecodeError as error:
            raise InvalidRecord("a record has a header whose key is not UTF-8") from error
        position += size
        byte = data[position]
        position += 1
        if byte < 0x80:
            size = (byte >> 1) ^ -(byte & 1)
        else:
            size, position = read_varint(data, position - 1)
        if size < -1:
            raise InvalidRecord(f"a record has a header whose value has the impossible length {size}")
        if size == -1:
            headers.append((key, None))
        else:
            headers.append((key, data[position : position + size]))
            position += size
    return tuple(headers), position
