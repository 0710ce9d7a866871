"""The encoder of Arrow columns as record batches (format version 2), which encodes many rows at once. PURE.

Theory of operation
===================

`odradek.wire.batches.record_writer` encodes one row after the other from Python objects. Spark provides
columns, ten thousand rows at a time. Making Python objects of the rows would cost more than everything else.
So here no row becomes an object:

1. `partitions_of` computes the partitions of all rows. If a row has a value in the partition column, this
   value is its partition. Otherwise the murmur2 hash of its key decides, as in all of Kafka's clients. The
   hash is computed word by word for all keys at once. If a row has no key either, the caller gives the
   partition.
2. `encode` sorts the rows by partition. The sort is stable, so the rows of one partition keep their order.
   Each partition's rows are cut into batches by size. A record's index in its batch is its offset delta. The
   lengths of its fields give the length of the record.
3. The varints before each key and before each value are written into two arrays of short byte strings, column
   by column.
4. One call to Arrow joins the parts of every record: varints, key, varint, value, headers. The buffer of the
   result has the records of all batches, one after the other. A batch consists of its header and a slice of
   this buffer.

The result is byte for byte what `odradek.wire.batches.record_writer` makes from the same rows
(tests/spark/writing/test_encode.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from odradek.wire.batches.batch_header import HEADER, HEADER_SIZE, MAGIC, SIZE_PREFIX
from odradek.wire.batches.compression import compress

__all__ = ["EncodedBatch", "Rows", "encode", "murmur2_of", "partitions_of"]

_Int64s = npt.NDArray[np.int64]
_Int32s = npt.NDArray[np.int32]
_Bytes = npt.NDArray[np.uint8]
_VARINT_BYTES_MAX = 5

_SEED = 0x9747B28C
_M = np.uint32(0x5BD1E995)


@attrs.frozen
class EncodedBatch:
    """An encoded batch of one partition. Only the producer's id, epoch and sequence numbers, and the checksum, are
    missing (`odradek.wire.batches.record_writer.stamp`).
    """

    lane: int
    data: bytearray
    record_count: int
    record_bytes: int
    """The uncompressed bytes of keys and values."""


@attrs.frozen
class Rows:
    """The columns of some rows. `key` and `value` are binary arrays, which may have nulls. `headers` has lists of
    (key, value) structs, or is None.
    """

    key: pa.Array
    value: pa.Array
    headers: pa.Array | None

    def __len__(self) -> int:
        return len(self.value)

    def take(self, order: _Int64s) -> Rows:
        """Return the rows with the indexes in `order`, in the order of `order`."""
        places = pa.array(order)
        return Rows(
            self.key.take(places),
            self.value.take(places),
            None if self.headers is None else self.headers.take(places),
        )


def encode(
    rows: Rows,
    lanes: _Int32s,
    *,
    timestamp_ms: int,
    batch_bytes_max: int,
    compression_type: int = 0,
    compression_level: int | None = None,
) -> Iterator[EncodedBatch]:
    """Encode these rows as batches. All rows get the same timestamp, and `lanes` has the partition of each row. Rows
    of a partition keep their order.

    A batch has at most `batch_bytes_max` bytes before compression, unless a single record is larger. All rows
    together must have much less than 2 GiB (the limit of an Arrow array of bytes).
    """
    if not len(rows):
        return
    order = np.argsort(lanes, kind="stable")
    if np.any(order[1:] < order[:-1]):
        rows, lanes = rows.take(order), lanes[order]
    key_sizes, key_text = _sizes_and_bytes(rows.key)
    value_sizes, value_text = _sizes_and_bytes(rows.value)
    tail_sizes, tails = _header_tails(rows.headers, len(rows))
    # Besides its fields (`content`), a record has one byte of attributes and one byte for the timestamp delta 0. The
    # offset delta and the record's length have at most five bytes each.
    content = (
        _varint_sizes(key_sizes)
        + np.maximum(key_sizes, 0)
        + _varint_sizes(value_sizes)
        + np.maximum(value_sizes, 0)
        + tail_sizes
    )
    starts = _batch_starts(lanes, content + 2 + 2 * _VARINT_BYTES_MAX, batch_bytes_max - HEADER_SIZE)
    ends = np.append(starts[1:], len(rows))
    deltas = np.arange(len(rows)) - np.repeat(starts, ends - starts)
    record_sizes = 2 + _varint_sizes(deltas) + content
    heads = _short_strings(record_sizes, b"\0\0", deltas, key_sizes)
    middles = _short_strings(value_sizes)
    records = pc.binary_join_element_wise(heads, key_text, middles, value_text, tails, b"")
    places, buffer = _places(records), memoryview(records.buffers()[2])
    plain_sums = np.concatenate(([0], np.cumsum(np.maximum(key_sizes, 0) + np.maximum(value_sizes, 0))))
    # The producer sends batches of several partitions together, so the partitions take turns.
    lanes_of = lanes[starts]
    turns = np.arange(len(starts)) - np.searchsorted(lanes_of, lanes_of)
    for place in np.argsort(turns, kind="stable").tolist():
        start, end = int(starts[place]), int(ends[place])
        body = buffer[places[start] : places[end]]
        count = end - start
        yield EncodedBatch(
            int(lanes[start]),
            _batch(body, count, timestamp_ms, compression_type, compression_level),
            count,
            int(plain_sums[end] - plain_sums[start]),
        )


def partitions_of(
    keys: pa.Array,
    count: int,
    *,
    wanted: pa.Array | None,
    keyless: _Int32s,
) -> _Int32s:
    """Choose the partition of every row. It is `wanted` if this is not null, otherwise it follows from the
    hash of the key. Rows without a key get `keyless`.

    Raises `ValueError` if `wanted` has a partition that does not exist; the text names the partition.
    """
    chosen = np.where(
        pc.is_null(keys).to_numpy(zero_copy_only=False),
        keyless,
        ((murmur2_of(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(count)).astype(np.int32),
    ).astype(np.int32)
    if wanted is None:
        return chosen
    given = pc.fill_null(wanted, -1).to_numpy(zero_copy_only=False).astype(np.int32)
    present = pc.is_valid(wanted).to_numpy(zero_copy_only=False)
    wrong = present & ((given < 0) | (given >= count))
    if wrong.any():
        raise ValueError(str(int(given[wrong][0])))
    return np.where(present, given, chosen).astype(np.int32)


def murmur2_of(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """Compute the murmur2 hash of each key, as `odradek.client.producer.partitioner.murmur2` does. A null key is
    hashed like an empty key.
    """
    places = _places(keys)
    raw = keys.buffers()[2]
    data: _Bytes = np.frombuffer(raw, np.uint8) if raw is not None else np.zeros(0, np.uint8)
    # Whole words are read, even beyond the end of the last key. The extra bytes are masked.
    data = np.concatenate((data[places[0] : places[-1]], np.zeros(4, np.uint8)))
    begins = places[:-1] - places[0]
    sizes = np.where(pc.is_valid(keys).to_numpy(zero_copy_only=False), np.diff(places), 0)
    hashes = np.uint32(_SEED) ^ sizes.astype(np.uint32)
    words = sizes >> 2
    shortest = int(words.min(initial=0)) if len(words) and words.min() == words.max() else -1
    for number in range(int(words.max(initial=0))):
        here = slice(None) if number < shortest else np.flatnonzero(words > number)
        word = _word(data, begins[here] + 4 * number) * _M
        word = (word ^ word >> np.uint32(24)) * _M
        hashes[here] = hashes[here] * _M ^ word
    rest = sizes & 3
    cut = np.flatnonzero(rest)
    if len(cut):
        mask = ((np.uint32(1) << (np.uint32(8) * rest[cut].astype(np.uint32))) - np.uint32(1)).astype(
            np.uint32
        )
        last = _word(data, begins[cut] + 4 * words[cut]) & mask
        hashes[cut] = (hashes[cut] ^ last) * _M
    hashes = (hashes ^ hashes >> np.uint32(13)) * _M
    return hashes ^ hashes >> np.uint32(15)


def _word(data: _Bytes, places: _Int64s) -> npt.NDArray[np.uint32]:
    """Read the four bytes at each position as a little-endian integer."""
    word = data[places].astype(np.uint32)
    for number in (1, 2, 3):
        word |= data[places + number].astype(np.uint32) << np.uint32(8 * number)
    return word


def _batch(
    body: memoryview, count: int, timestamp_ms: int, compression_type: int, compression_level: int | None
) -> bytearray:
    payload = compress(compression_type, bytes(body), compression_level) if compression_type else body
    batch = bytearray(HEADER_SIZE + len(payload))
    HEADER.pack_into(
        batch,
        0,
        0,
        len(batch) - SIZE_PREFIX,
        -1,
        MAGIC,
        0,
        compression_type,
        count - 1,
        timestamp_ms,
        timestamp_ms,
        -1,
        -1,
        -1,
        count,
    )
    batch[HEADER_SIZE:] = payload
    return batch


def _batch_starts(lanes: _Int32s, sizes: _Int64s, bytes_max: int) -> _Int64s:
    """Find the first row of each batch. A batch begins where the partition changes, or where the next record would
    exceed `bytes_max`.
    """
    sums = np.cumsum(sizes)
    bounds = np.concatenate(([0], np.flatnonzero(np.diff(lanes)) + 1, [len(lanes)])).tolist()
    starts: list[int] = []
    for begin, end in pairwise(bounds):
        while begin < end:
            starts.append(begin)
            before = sums[begin - 1] if begin else 0
            fitting = int(np.searchsorted(sums[begin:end], before + bytes_max, side="right"))
            begin += max(1, fitting)
    return np.array(starts, np.int64)


# Parts of records


def _places(strings: pa.Array) -> _Int64s:
    """Return the position of each string in the array's data, and the end of the last string."""
    offsets = np.frombuffer(strings.buffers()[1], np.int32, len(strings) + 1, strings.offset * 4)
    return offsets.astype(np.int64)


def _sizes_and_bytes(strings: pa.Array) -> tuple[_Int64s, pa.Array]:
    """Return the length of each string (-1 for null, as in a record), and the array with nulls removed."""
    if strings.null_count:
        missing = pc.is_null(strings).to_numpy(zero_copy_only=False)
        strings = pc.fill_null(strings, b"")
        return np.where(missing, -1, np.diff(_places(strings))), strings
    return np.diff(_places(strings)), strings


def _header_tails(headers: pa.Array | None, count: int) -> tuple[_Int64s, pa.Array | bytes]:
    """Encode the bytes after the value of each record: the number of headers, and the headers. Also return their
    sizes.

    If no row has headers, return a single byte that stands for all rows.
    """
    if headers is None or headers.null_count == len(headers):
        return np.ones(count, np.int64), b"\0"
    headers = pc.fill_null(headers, [])
    bounds = _list_bounds(headers)
    counts = np.diff(bounds)
    items = headers.flatten()
    name_sizes, names = _sizes_and_bytes(pc.struct_field(items, "key").cast(pa.binary()))
    value_sizes, values = _sizes_and_bytes(pc.struct_field(items, "value"))
    joined = pc.binary_join_element_wise(
        _short_strings(name_sizes), names, _short_strings(value_sizes), values, b""
    )
    if len(items):
        ends = _places(joined)[bounds - bounds[0]].astype(np.int32)
        contents = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), joined.buffers()[2]])
    else:
        contents = pa.array([b""] * count, pa.binary())
    tails = pc.binary_join_element_wise(_short_strings(counts), contents, b"")
    return np.diff(_places(tails)), tails


def _list_bounds(lists: pa.Array) -> _Int64s:
    return np.frombuffer(lists.buffers()[1], np.int32, len(lists) + 1, lists.offset * 4).astype(np.int64)


def _varint_sizes(numbers: _Int64s) -> _Int64s:
    """Count the bytes that each number takes as a zigzag varint."""
    zigzag = (numbers << 1) ^ (numbers >> 63)
    sizes = np.ones(len(numbers), np.int64)
    for shift in range(7, 7 * _VARINT_BYTES_MAX, 7):
        more = zigzag >> shift
        if not more.any():
            break
        sizes += more > 0
    return sizes


def _short_strings(*fields: _Int64s | bytes) -> pa.Array:
    """Encode a short byte string for each row: numbers as varints, constants unchanged."""
    widths = [len(each) if isinstance(each, bytes) else _varint_sizes(each) for each in fields]
    count = next(len(each) for each in fields if not isinstance(each, bytes))
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(np.zeros(count, np.int64) + sum(widths), out=ends[1:])
    out: _Bytes = np.zeros(int(ends[-1]), np.uint8)
    places = ends[:-1].copy()
    for field, width in zip(fields, widths, strict=True):
        if isinstance(field, bytes):
            for number, byte in enumerate(field):
                if byte:
                    out[places + number] = byte
        else:
            _put_varints(out, places, field, width)
        places += width
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(out)]
    )


def _put_varints(out: _Bytes, places: _Int64s, numbers: _Int64s, widths: _Int64s | int) -> None:
    zigzag = (numbers << 1) ^ (numbers >> 63)
    widths = np.asarray(widths)
    for byte in range(int(widths.max(initial=0))):
        here = np.flatnonzero(widths > byte) if byte else slice(None)
        rest = zigzag[here] >> (7 * byte)
        more = (rest > 0x7F).astype(np.uint8) << np.uint8(7)
        out[places[here] + byte] = (rest & 0x7F).astype(np.uint8) | more
