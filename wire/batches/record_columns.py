"""Decodes the records of many batches at once, in columns. This is the only module of `wire` that needs
numpy. PURE.

Theory of operation
-------------------
Only one step is sequential: to find where a record begins, one must know the length of the preceding record.
So a loop goes from record to record, and reads only the length of each record, a varint. For a run of records
of equal length, numpy compares all lengths at once instead (`_run`). All other steps are done for all records
of a group at once. The decompressed records of the group follow one another in one buffer. The steps are:

1. `RecordPlaces.add` checks a batch (header, checksum, decompression, number of records), and stores the
   positions of its records.
2. `record_columns` decodes the varints of all records, column by column: lengths, timestamp deltas, offset
   deltas, key lengths, and so on.
3. `record_columns` checks that each part of a record ends within the record. Reads before this check may go
   beyond the last record. There they read the `PAD` zero bytes.

Records that `odradek.wire.batches.records.records` refuses are refused here, too. But the headers of records
are not checked here.
"""

from __future__ import annotations

from array import array

import attrs
import numpy as np
import numpy.typing as npt

from odradek.wire.batches.batch_errors import CorruptBatch, DecompressionBomb, InvalidRecord
from odradek.wire.batches.batch_header import HEADER_SIZE, BatchHeader, Buffer, check_crc
from odradek.wire.batches.compression import decompress

__all__ = ["PAD", "Bytes", "Int64s", "RecordColumns", "RecordPlaces", "record_columns", "record_offsets"]

_RECORD_SIZE_MIN = 7
_RUN_MIN = 32
"""The least number of remaining records for which numpy compares lengths. For fewer records, the loop is
faster.
"""
PAD = 64
"""The number of zero bytes behind the last record. Up to five varints of ten bytes each may be read beyond
the record's end before that end is checked.
"""

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@attrs.define
class RecordPlaces:
    """Batches whose records are to be decoded together, and the position at which each record begins."""

    bodies: list[Buffer] = attrs.field(factory=list)
    size: int = 0
    """The number of bytes of all batches' records after decompression."""
    headers: list[BatchHeader] = attrs.field(factory=list)
    """The headers of the batches that have records."""
    _places: array[int] = attrs.field(factory=lambda: array("q"))

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._places)

    def add(self, buf: Buffer, position: int, header: BatchHeader, decompressed_bytes_max: int) -> None:
        """Add a whole batch of a log, with its `header`, from `position` in `buf`. `decompressed_bytes_max`
        bounds the bytes of its records.

        Raises:
            CorruptBatch: a wrong checksum, or bytes that do not decompress.
            DecompressionBomb: the records have more than `decompressed_bytes_max` bytes.
            InvalidRecord: records contradict their header or themselves.
            KafkaError: UNSUPPORTED_COMPRESSION_TYPE.
        """
        end = position + header.size
        if not check_crc(buf, position, header.size):
            raise CorruptBatch("the checksum of the record batch is wrong")
        body: Buffer = memoryview(buf)[position + HEADER_SIZE : end]
        if header.compression_type:
            body = decompress(header.compression_type, body, decompressed_bytes_max)
        elif len(body) > decompressed_bytes_max:
            raise DecompressionBomb(
                f"the records of the batch take {len(body)} bytes, and at most "
                f"{decompressed_bytes_max} are allowed"
            )
        count = header.record_count
        if count < 0 or count * _RECORD_SIZE_MIN > len(body):
            raise InvalidRecord(f"the batch claims {count} records, too many for its {len(body)} bytes")
        try:
            place = _walk(body, count, self.size, self._places)
        except (IndexError, OverflowError):
            raise InvalidRecord("a record is longer than the batch that holds it") from None
        if place != len(body):
            raise InvalidRecord(
                f"the batch claims {count} records, which end after {place} of its {len(body)} bytes"
            )
        if count:
            self.bodies.append(body)
            self.size += len(body)
            self.headers.append(header)

    def joined(self) -> tuple[Bytes, Int64s]:
        """Join the records of all batches in one buffer, with `PAD` zero bytes behind them. Returns the
        buffer and the position of each record in it.
        """
        data = np.frombuffer(b"".join([*self.bodies, bytes(PAD)]), np.uint8)
        return data, np.frombuffer(self._places, np.int64)

    def counts(self) -> Int64s:
        """Return the number of records of each batch, in the order of `headers`."""
        return np.array([header.record_count for header in self.headers], np.int64)


def _walk(body: Buffer, count: int, base: int, places: array[int]) -> int:
    """Append the position of each of the `count` records in `body` to `places`. `base` is added to each
    position. Returns the position in `body` at which the last record ends.

    A negative length is not noticed here; a later check of all lengths finds it.

    Raises:
        IndexError: the records go beyond the body.
        OverflowError: a position needs more than 64 bits.
        InvalidRecord: a length of more than ten bytes.
    """
    place = 0
    while count >= _RUN_MIN:
        run, size = _run(body, place, count)
        if run:
            places.frombytes(
                np.arange(base + place, base + place + run * size, size, dtype=np.int64).tobytes()
            )
            place += run * size
            count -= run
        if run < _RUN_MIN:
            break
    append = places.append
    for _ in range(count):
        append(base + place)
        byte = body[place]
        if byte < 0x80:
            place += 1 + (byte >> 1)
        elif (high := body[place + 1]) < 0x80:
            place += 2 + ((byte & 0x7F | high << 7) >> 1)
        else:
            number, shift = byte & 0x7F, 7
            while byte >= 0x80:
                if shift > 63:
                    raise InvalidRecord("a variable-length number has more than ten bytes")
                place += 1
                byte = body[place]
                number |= (byte & 0x7F) << shift
                shift += 7
            place += 1 + (number >> 1)
    return place


def _run(body: Buffer, place: int, count: int) -> tuple[int, int]:
    """Count the successive records that have the same length as the record at `place`, up to `count`. Returns
    their number, and the size in bytes of one of them.

    The number is 0 if the second record has another length, or if the length takes more than two bytes.

    Raises:
        IndexError: the first two records go beyond the body.
    """
    low, high = body[place], body[place + 1]
    if low < 0x80:
        size, width = 1 + (low >> 1), "u1"
    elif high < 0x80:
        size, width = 2 + ((low & 0x7F | high << 7) >> 1), "<u2"
    else:
        return 0, 0
    second = place + size
    if body[second] != low or (width == "<u2" and body[second + 1] != high):
        return 0, 0
    fitting = min(count, (len(body) - place) // size)
    lengths = np.ndarray((fitting,), width, body, place, (size,))
    others = np.flatnonzero(lengths != lengths[0])
    return (int(others[0]) if len(others) else fitting), size


def _varints(data: Bytes, places: Int64s) -> tuple[Int64s, Int64s]:
    """Decode the zigzag number at each position of `places`. Returns the numbers, and the positions that
    follow them.

    Raises:
        InvalidRecord: a number has more than ten bytes, or more than 64 bits.
    """
    first = data.take(places)
    number = (first & 0x7F).astype(np.uint64)
    behind = places + 1
    longer = first >= 0x80
    if longer.any():
        second = data.take(behind)
        number |= np.where(longer, second & 0x7F, 0).astype(np.uint64) << np.uint64(7)
        behind += longer
        # Lengths and offsets rarely have more than two bytes. So two bytes are read for all records at once,
        # and further bytes only for the records that have them.
        left = np.flatnonzero(longer & (second >= 0x80))
        shift = 14
        while len(left):
            byte = data[behind[left]]
            if shift == 63 and (byte > 1).any():
                raise InvalidRecord("a variable-length number has more than 64 bits")
            number[left] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            behind[left] += 1
            left = left[byte >= 0x80]
            shift += 7
    sign = -(number & 1).view(np.int64)
    return (number >> 1).view(np.int64) ^ sign, behind


def _part(data: Bytes, places: Int64s, ends: Int64s, what: str) -> tuple[Int64s, Int64s, Int64s]:
    """Find the key or the value of each record. The part begins with its length at `places`; a length of -1
    means null. Returns three columns: the position of the part's first byte, its length, and the position
    that follows the part.
    """
    length, start = _varints(data, places)
    if ((length < -1) | (length > ends - start)).any():
        raise InvalidRecord(f"the length of a record's {what} is impossible")
    return start, length, start + np.maximum(length, 0)


@attrs.frozen
class _Fields:
    """The decoded fields of all records of a group, one array per field. Places count from the start of the
    group's buffer; a length of -1 means null.
    """

    timestamp_delta: Int64s
    offset_delta: Int64s
    key: Int64s
    key_length: Int64s
    value: Int64s
    value_length: Int64s
    headers: Int64s
    """The place of each record's header count."""
    end: Int64s


@attrs.frozen
class RecordColumns:
    """The decoded fields of all records of a group, one array per field. Places count from the start of
    `data`; a length of -1 means null.
    """

    data: Bytes
    start: Int64s
    timestamp_delta: Int64s
    offset_delta: Int64s
    key: Int64s
    key_length: Int64s
    value: Int64s
    value_length: Int64s
    headers: Int64s
    """The place of each record's header count."""
    end: Int64s


def record_columns(group: RecordPlaces) -> RecordColumns:
    """Decode all records of a group of batches. Raises `InvalidRecord`."""
    data, places = group.joined()
    length, body = _varints(data, places)
    if (length < _RECORD_SIZE_MIN - 1).any():
        raise InvalidRecord("the length of a record is impossible")
    end = body + length
    timestamp_delta, behind = _varints(data, body + 1)
    offset_delta, behind = _varints(data, behind)
    key, key_length, behind = _part(data, behind, end, "key")
    value, value_length, headers = _part(data, behind, end, "value")
    return RecordColumns(
        data, places, timestamp_delta, offset_delta, key, key_length, value, value_length, headers, end
    )


def record_offsets(headers: list[BatchHeader], delta: Int64s) -> Int64s:
    """Compute each record's offset from its delta. Raises `InvalidRecord` if the offsets of a batch do not
    increase.
    """
    counts = np.array([header.record_count for header in headers], np.int64)
    base = np.repeat(np.array([header.base_offset for header in headers], np.int64), counts)
    last = np.repeat(np.array([header.last_offset_delta for header in headers], np.int64), counts)
    grows = np.ones(len(delta), np.bool_)
    np.greater(delta[1:], delta[:-1], out=grows[1:])
    grows[np.cumsum(counts)[:-1]] = True
    if not (grows & (delta >= 0) & (delta <= last)).all():
        raise InvalidRecord(
            "the offset deltas of the records do not grow, or exceed the last delta of the batch"
        )
    return base + delta
