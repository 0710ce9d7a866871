"""The decoder of record batches (format version 2) to Arrow record batches with the columns of Spark's own Kafka
connector. PURE.

Theory of operation
===================

`odradek.wire.batches.records` parses one record after the other, which is too slow for a million rows per second.
`odradek.wire.batches.record_columns` decodes all records of a group of batches at once. This module converts them to
Arrow columns:

1. the end of every record is compared with the record's length. Positions within a record only grow, so this one
   comparison proves that no field reaches beyond the record;
2. Arrow's C code cuts out keys and values. The buffer becomes an array in which wanted and unwanted parts alternate,
   and `take` copies every second item.

Headers are rare and nested. So records with headers are decoded one by one, and only if the query asks for headers.

Records that `odradek.wire.batches.records.records` refuses are refused here as well, with the same errors. Batches in
the wrong order are also refused. Headers are checked only if the query uses them.

One odd record that a broker has accepted must not make every query of its topic fail. So some faults are repaired. A
header's key that is not UTF-8 is decoded with replacement characters, as in the JVM connector. Spark's column counts
microseconds in 64 bits. A time that does not fit becomes null. (With a maximum time instead of null, watermarks would
move far into the future.)

Control batches are skipped. Batches of aborted transactions, which a broker lists in its answer (`_Aborted`), are
skipped as well. The checksums of skipped batches are verified as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from odradek.wire.batches.batch_errors import CorruptBatch, InvalidRecord
from odradek.wire.batches.batch_header import BatchHeader, Buffer, check_crc, iter_batches
from odradek.wire.batches.record_columns import (
    Bytes,
    Int64s,
    RecordColumns,
    RecordPlaces,
    record_columns,
    record_offsets,
)
from odradek.wire.batches.records import records

__all__ = ["SCHEMA", "SCHEMA_WITH_HEADERS", "DecodedRows", "FetchedRange", "decode_batches", "decode_ranges"]

_COLUMNS = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("timestampType", pa.int32()),
]
_HEADER_TYPE = pa.struct([("key", pa.string()), ("value", pa.binary())])

SCHEMA = pa.schema(_COLUMNS)
"""The columns of `spark.read.format("kafka")`. In the column `timestampType`, 0 means CreateTime and 1 means
LogAppendTime.
"""
SCHEMA_WITH_HEADERS = pa.schema([*_COLUMNS, ("headers", pa.list_(_HEADER_TYPE))])
"""`SCHEMA` with the column `headers` of the option `includeHeaders`. The column is null for a record without headers.
"""

_GROUP_BYTES = 16 << 20
"""A group of batches is complete once it has this many bytes, even if it has few rows."""
_BATCH_BYTES_MAX = 1 << 30
"""The largest decompressed size of a batch, in bytes. With this limit, a group and one more batch stay below 2**31
bytes, the range of Arrow's 32-bit offsets.
"""
_TIMESTAMP_MS_MAX = (2**63 - 1) // 1000
_CONTROL_KEY = Struct(">hh")
_CONTROL_BYTES_MAX = 1 << 16
_ABORT = 0


@attrs.frozen
class DecodedRows:
    """The decoded rows of one or more batches, in order."""

    rows: pa.RecordBatch
    """The rows. There are no rows if all batches were control batches or outside of the wanted offsets, or if
    compaction has removed all their records.
    """
    next_offset: int
    """The offset from which to continue reading: after the last batch in the answer, but at most the wanted end."""


@attrs.frozen
class FetchedRange:
    """The fetch answer for one of several ranges, with the wanted offsets. The fields have the same meaning as the
    arguments of `decode_batches`.
    """

    records: Buffer
    topic: str
    partition: int
    offset: int
    offset_end: int
    aborted: Sequence[tuple[int, int]] = ()


def decode_batches(
    buf: Buffer,
    *,
    topic: str,
    partition: int,
    offset: int,
    decompressed_bytes_max: int,
    offset_end: int | None = None,
    with_headers: bool = False,
    rows_wanted: int = 10_000,
    aborted: Sequence[tuple[int, int]] = (),
) -> Iterator[DecodedRows]:
    """Decode the records of a fetch answer from `offset` up to but not including `offset_end`, and yield them in
    pieces. A truncated batch at the end is ignored.

    Batches are not divided. So a piece has at least `rows_wanted` rows, and may have many more. (Only the last piece,
    or a piece with very large rows, has fewer.) Nothing is yielded before the first complete batch.
    `decompressed_bytes_max` limits each batch. While a batch is decoded, each record needs about 200 bytes in
    addition. `aborted` lists (first offset, producer id) of the transactions to leave out, sorted by offset, as in a
    read_committed answer.

    Raises:
        CorruptBatch: a wrong checksum, bytes that cannot be decompressed, or a batch that begins before the previous one ends.
        DecompressionBomb: a batch has more than `decompressed_bytes_max` bytes.
        InvalidRecord: records contradict their header or themselves.
        KafkaError: UNSUPPORTED_COMPRESSION_TYPE.
        ValueError: `decompressed_bytes_max` is above 1 GiB.
    """
    if decompressed_bytes_max > _BATCH_BYTES_MAX:
        raise ValueError(f"decompressed_bytes_max must be at most {_BATCH_BYTES_MAX}")
    schema = SCHEMA_WITH_HEADERS if with_headers else SCHEMA
    end = 2**63 - 1 if offset_end is None else offset_end
    group = _Group()
    left_out = _Aborted(list(aborted)) if aborted else None
    next_offset: int | None = None
    for position, header in iter_batches(buf):
        _check_place(header, next_offset)
        if header.base_offset >= end:
            # Compaction may have removed all records before the wanted end. Yield the end, so that the caller does
            # not fetch again.
            yield DecodedRows(_rows(group, schema, topic, partition, offset, end), end)
            return
        next_offset = header.next_offset
        visible = left_out is None or left_out.visible(buf, position, header)
        group.add(buf, position, header, decompressed_bytes_max, visible=visible)
        if len(group.places) >= rows_wanted or group.places.size >= _GROUP_BYTES:
            yield DecodedRows(_rows(group, schema, topic, partition, offset, end), min(next_offset, end))
            group = _Group()
            if next_offset >= end:
                return
    if group.looked_at and next_offset is not None:
        yield DecodedRows(_rows(group, schema, topic, partition, offset, end), min(next_offset, end))


def decode_ranges(
    ranges: Iterable[FetchedRange],
    *,
    decompressed_bytes_max: int,
    with_headers: bool = False,
    rows_wanted: int = 10_000,
) -> Iterator[pa.RecordBatch]:
    """Decode the records of several small ranges, one range after the other, and yield them in Arrow batches of
    `rows_wanted` rows or more.

    A range costs little more than its records, while a call of `decode_batches` costs as much as a thousand records.
    Raises as `decode_batches` does; the error does not name the range.
    """
    if decompressed_bytes_max > _BATCH_BYTES_MAX:
        raise ValueError(f"decompressed_bytes_max must be at most {_BATCH_BYTES_MAX}")
    schema = SCHEMA_WITH_HEADERS if with_headers else SCHEMA
    group, shares = _Group(), list[_Share]()
    for each in ranges:
        left_out = _Aborted(list(each.aborted)) if each.aborted else None
        next_offset: int | None = None
        before = len(group.places)
        for position, header in iter_batches(each.records):
            _check_place(header, next_offset)
            if header.base_offset >= each.offset_end:
                break
            next_offset = header.next_offset
            visible = left_out is None or left_out.visible(each.records, position, header)
            group.add(each.records, position, header, decompressed_bytes_max, visible=visible)
            if len(group.places) >= rows_wanted or group.places.size >= _GROUP_BYTES:
                shares.append(_Share(each, len(group.places) - before))
                yield _rows_of_ranges(group, schema, shares)
                group, shares, before = _Group(), [], 0
        shares.append(_Share(each, len(group.places) - before))
    if len(group.places):
        yield _rows_of_ranges(group, schema, shares)


@attrs.frozen
class _Share:
    """A range, and the number of records of a group that come from this range."""

    wanted: FetchedRange
    records: int


def _check_place(header: BatchHeader, next_offset: int | None) -> None:
    """Raise CorruptBatch if the header's offsets are impossible in a log. The batch's checksum does not cover these
    offsets.
    """
    base_offset = header.base_offset
    if base_offset < 0 or header.last_offset_delta < 0 or header.next_offset >= 2**63:
        raise CorruptBatch(
            f"a record batch claims the impossible offsets {base_offset} to {header.last_offset}"
        )
    if next_offset is not None and base_offset < next_offset:
        raise CorruptBatch(
            f"a record batch begins at offset {base_offset}, although the batch before it ends at "
            f"{next_offset - 1}"
        )


@attrs.define
class _Aborted:
    """The aborted transactions of a range. Each of them lasts from its first offset to the next abort marker of its
    producer.
    """

    coming: list[tuple[int, int]]
    """The aborted transactions that begin after the batches read so far, sorted by first offset."""
    producers: set[int] = attrs.field(factory=set)

    def visible(self, buf: Buffer, position: int, header: BatchHeader) -> bool:
        """True if the next batch does not belong to an aborted transaction. Call this for every batch, in order."""
        while self.coming and self.coming[0][0] <= header.last_offset:
            self.producers.add(self.coming.pop(0)[1])
        if header.is_control:
            if header.producer_id in self.producers and _is_abort_marker(buf, position):
                self.producers.discard(header.producer_id)
            return True
        return not (header.is_transactional and header.producer_id in self.producers)


def _is_abort_marker(buf: Buffer, position: int) -> bool:
    """True if this control record is an abort marker (KIP-98): its key has a version and a type. False if compaction
    has removed the record.
    """
    found = records(buf, position, decompressed_bytes_max=_CONTROL_BYTES_MAX)
    key = found[0].key if found else None
    return key is not None and len(key) >= _CONTROL_KEY.size and _CONTROL_KEY.unpack_from(key)[1] == _ABORT


@attrs.define
class _Group:
    """A group of batches that will become one Arrow batch."""

    places: RecordPlaces = attrs.field(factory=RecordPlaces)
    looked_at: int = 0

    def add(
        self, buf: Buffer, position: int, header: BatchHeader, decompressed_bytes_max: int, *, visible: bool
    ) -> None:
        self.looked_at += 1
        if header.is_control or not visible:
            if not check_crc(buf, position, header.size):
                raise CorruptBatch("the checksum of the record batch is wrong")
            return
        self.places.add(buf, position, header, decompressed_bytes_max)


def _rows(
    group: _Group, schema: pa.Schema, topic: str, partition: int, offset: int, offset_end: int
) -> pa.RecordBatch:
    """Make the Arrow batch of a group. All rows of the group are checked, even rows outside of the wanted offsets.
    Rows outside are left out after the check.
    """
    fields = record_columns(group.places)
    data = fields.data
    offsets = record_offsets(group.places.headers, fields.offset_delta)
    timestamps, timestamp_types = _timestamps(group.places.headers, fields.timestamp_delta)

    first, last = (int(each) for each in np.searchsorted(offsets, (offset, max(offset, offset_end))))
    wanted = slice(first, last)
    count = last - first
    columns = [
        _binaries(data, fields.key[wanted], fields.key_length[wanted]),
        _binaries(data, fields.value[wanted], fields.value_length[wanted]),
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.array(np.full(count, partition, np.int32)),
        pa.array(offsets[wanted]),
        timestamps.slice(first, count),
        pa.array(timestamp_types[wanted]),
    ]
    if len(schema) > len(columns):
        columns.append(_header_column(data, fields, len(group.places)).slice(first, count))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _rows_of_ranges(group: _Group, schema: pa.Schema, shares: Sequence[_Share]) -> pa.RecordBatch:
    """Make the Arrow batch of a group whose batches come from several ranges."""
    fields = record_columns(group.places)
    offsets = record_offsets(group.places.headers, fields.offset_delta)
    timestamps, timestamp_types = _timestamps(group.places.headers, fields.timestamp_delta)
    counts = np.array([share.records for share in shares], np.int64)
    share_of = np.repeat(np.arange(len(shares), dtype=np.int32), counts)

    def of_range(values: list[int], dtype: type[np.integer[Any]]) -> npt.NDArray[Any]:
        return np.array(values, dtype)[share_of]

    columns = [
        _binaries(fields.data, fields.key, fields.key_length),
        _binaries(fields.data, fields.value, fields.value_length),
        pa.array([share.wanted.topic for share in shares], pa.string()).take(pa.array(share_of)),
        pa.array(of_range([share.wanted.partition for share in shares], np.int32)),
        pa.array(offsets),
        timestamps,
        pa.array(timestamp_types),
    ]
    if len(schema) > len(columns):
        columns.append(_header_column(fields.data, fields, len(group.places)))
    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    inside = offsets >= of_range([share.wanted.offset for share in shares], np.int64)
    inside &= offsets < of_range([share.wanted.offset_end for share in shares], np.int64)
    return rows if inside.all() else rows.filter(pa.array(inside))


def _timestamps(headers: list[BatchHeader], delta: Int64s) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    """Make the columns `timestamp` (null if the column cannot hold the time) and `timestampType`.

    With LogAppendTime, every record has the largest timestamp of its batch.
    """
    counts = np.array([header.record_count for header in headers], np.int64)
    types = np.repeat(np.array([header.timestamp_type for header in headers], np.int32), counts)
    base = np.repeat(
        np.array([h.max_timestamp if h.timestamp_type else h.base_timestamp for h in headers], np.int64),
        counts,
    )
    delta = np.where(types, 0, delta) if types.any() else delta
    timestamps = base + delta
    wrapped = (base ^ timestamps) & (delta ^ timestamps) < 0
    beyond = wrapped | (timestamps > _TIMESTAMP_MS_MAX) | (timestamps < -_TIMESTAMP_MS_MAX)
    microseconds = np.where(beyond, 0, timestamps) * 1000
    mask = beyond if beyond.any() else None
    return pa.array(microseconds, type=pa.timestamp("us", tz="UTC"), mask=mask), types


def _binaries(data: Bytes, places: Int64s, lengths: Int64s) -> pa.Array:
    """Make a binary Arrow column from parts of `data`. `places` must increase. A length of -1 gives null."""
    count = len(places)
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[0:-1:2] = places
    bounds[1::2] = places + np.maximum(lengths, 0)
    bounds[-1] = bounds[-2] if count else 0
    parts = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    ).take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))
    null = lengths < 0
    if not null.any():
        return parts
    _, ends, content = parts.buffers()
    valid = np.packbits(~null, bitorder="little")
    return pa.Array.from_buffers(pa.binary(), count, [pa.py_buffer(valid), ends, content])


def _header_column(data: Bytes, fields: RecordColumns, rows: int) -> pa.Array:
    """Make the column `headers`, null for a record without headers. Check that every record ends where its length
    says.
    """
    records = np.flatnonzero((data[fields.headers] != 0) | (fields.headers + 1 != fields.end))
    if not len(records):
        return pa.nulls(rows, pa.list_(_HEADER_TYPE))
    flat = _Headers()
    joined = data.tobytes()
    for place, end in zip(fields.headers[records].tolist(), fields.end[records].tolist(), strict=True):
        flat.walk(joined, place, end)
    keys = _texts(_binaries(data, _int64s(flat.keys), _int64s(flat.key_lengths)))
    values = _binaries(data, _int64s(flat.values), _int64s(flat.value_lengths))
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(_HEADER_TYPE))
    per_row = np.zeros(rows, np.int32)
    per_row[records] = flat.counts
    bounds = np.zeros(rows + 1, np.int32)
    np.cumsum(per_row, out=bounds[1:])
    return pa.ListArray.from_arrays(pa.array(bounds), pairs, mask=pa.array(per_row == 0))


def _texts(column: pa.Array) -> pa.Array:
    """Decode a binary column as text. Bytes that are not UTF-8 become replacement characters (U+FFFD)."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([each.decode(errors="replace") for each in column.to_pylist()], pa.string())


@attrs.define
class _Headers:
    """The headers of several records, one after the other: positions and lengths of their keys and values."""

    keys: list[int] = attrs.field(factory=list)
    key_lengths: list[int] = attrs.field(factory=list)
    values: list[int] = attrs.field(factory=list)
    value_lengths: list[int] = attrs.field(factory=list)
    counts: list[int] = attrs.field(factory=list)
    """The number of headers of each record."""

    def walk(self, data: bytes, place: int, end: int) -> None:
        """Add the headers of one record. `place` is the position of the header count. `end` is the
        position behind the record.

        Raises:
            InvalidRecord: the headers do not end exactly where the record does, or their lengths contradict each other.
        """
        count, place = _varint(data, place)
        # A header has at least two bytes. So refuse a count that is too large for the remaining bytes before any
        # header is read.
        if not 0 <= 2 * count <= end - place:
            raise InvalidRecord(
                f"a record claims {count} headers, too many for the {end - place} bytes that are left"
            )
        for _ in range(count):
            length, place = _varint(data, place)
            if not 0 <= length <= end - place:
                raise InvalidRecord(f"a record header's key has the impossible length {length}")
            self.keys.append(place)
            self.key_lengths.append(length)
            length, place = _varint(data, place + length)
            if not -1 <= length <= end - place:
                raise InvalidRecord(f"a record header's value has the impossible length {length}")
            self.values.append(place)
            self.value_lengths.append(length)
            place += max(length, 0)
        if place != end:
            raise InvalidRecord(f"a record's fields exceed the record's length by {place - end} bytes")
        self.counts.append(count)


def _int64s(numbers: list[int]) -> Int64s:
    return np.array(numbers, np.int64)


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Decode a zigzag varint. Return its value and the position after it. `data` must end with `record_columns.PAD`
    zero bytes.
    """
    byte = data[place]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), place + 1
    number, shift = byte & 0x7F, 7
    while byte >= 0x80:
        if shift > 63:
            raise InvalidRecord("a variable-length number has more than ten bytes")
        place += 1
        byte = data[place]
        number |= (byte & 0x7F) << shift
        shift += 7
    return (number >> 1) ^ -(number & 1), place + 1
