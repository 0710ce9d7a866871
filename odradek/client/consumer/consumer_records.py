"""From a fetched batch to the records that an application gets: the consumer's hot loop. PURE.

A small batch may hold very many records, so they are made as they are taken, piece by piece; what comes of one batch
at a time is its decompressed bytes. Records of one shape are parsed by columns (`record_runs.py`); any other costs
about half a microsecond. For that, the varints of one and two bytes are inlined. Checks are those that keep a damaged
batch from being misread. The tuple is built once, with topic and partition in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

from odradek.client.consumer.consumer_types import ConsumerRecord
from odradek.client.consumer.record_runs import RUN_MIN, LastShapes, Shape
from wire.batches.batch_errors import CorruptBatch, InvalidRecord
from wire.batches.batch_header import HEADER_SIZE, BatchHeader, check_crc
from wire.batches.compression import decompress
from wire.batches.records import Header
from wire.errors import MalformedMessage
from wire.primitives import read_varint, read_varlong

__all__ = ["BatchRecords"]

_LOOK_AGAIN_RECORDS = 8
"""Records that are parsed singly after no run was found; doubled each time, so that looking in vain costs little."""
_ZIGZAG = tuple((byte >> 1) ^ -(byte & 1) for byte in range(0x80))


class _NewRecord(ConsumerRecord):
    """Made of a tuple in C, a fifth of a microsecond sooner than by the constructor of a named tuple."""

    __slots__ = ()
    __new__ = tuple.__new__  # type: ignore[assignment] # another signature is the point


_NewRecord.__name__ = _NewRecord.__qualname__ = "ConsumerRecord"


class BatchRecords:
    """The records of the batch that begins at `position` of `data` and whose header is `header`.

    `last_shapes` is kept by the caller, from batch to batch. Raises `CorruptBatch`, `InvalidRecord` (both `KafkaError`), as
    `wire.batches.records.records`; what is wrong with a record is raised by the `take` that comes to it.
    """

    __slots__ = ("_data", "_error", "_partition", "_place", "_shapes", "_topic", "header", "is_used_up")

    def __init__(
        self,
        topic: str,
        partition: int,
        data: memoryview,
        position: int,
        header: BatchHeader,
        *,
        decompressed_bytes_max: int,
        crc: bool,
        last_shapes: LastShapes,
    ) -> None:
        if crc and not check_crc(data, position, header.size):
            raise CorruptBatch(
                f"{topic}-{partition}: the checksum of the batch at {header.base_offset} is wrong"
            )
        body = data[position + HEADER_SIZE : position + header.size]
        self._data = decompress(header.compression_type, body, decompressed_bytes_max)
        count = header.record_count
        if count < 0:
            raise InvalidRecord(f"a batch of {count} records")
        self.header = header
        self._topic = topic
        self._partition = partition
        self._shapes = last_shapes
        self._error: InvalidRecord | None = None
        # Position, offset, delta that is due, records left, and when to look for a run next. The first record's timestamp
        # delta is 0, whatever those of the others are: a new shape begins with the second.
        self._place = (0, header.base_offset - 1, 0, count, count, _LOOK_AGAIN_RECORDS)
        self.is_used_up = False
        """Whether all records were taken, and nothing is wrong behind them."""

    def take(self, count_max: int) -> list[ConsumerRecord]:
        """The next records, at most so many; less where one follows that cannot be decoded, which the next call raises."""
        if self._error is not None:
            raise self._error
        found: list[ConsumerRecord] = []
        try:
            self._parse(found, count_max)
        except IndexError:
            self._error = InvalidRecord(
                f"the bytes of the batch end before its {self.header.record_count} records do"
            )
        except InvalidRecord as error:
            self._error = error
        except MalformedMessage as error:
            self._error = InvalidRecord(str(error))
        if self._error is not None and not found:
            raise self._error
        return found

    def _parse(self, found: list[ConsumerRecord], count_max: int) -> None:
        """Slices that reach behind the data come back short, so each record's end is compared with its length.

        The lowest bit of a length's first byte is its sign: negative are only those of null keys and values.
        """
        header, data = self.header, self._data
        topic, partition = self._topic, self._partition
        append = found.append
        new = _NewRecord
        zigzag = _ZIGZAG
        base_timestamp = header.base_timestamp
        leader_epoch = header.partition_leader_epoch
        timestamp_type = header.timestamp_type
        append_time = header.max_timestamp
        position, offset, due, left, look_at, look_less = self._place
        first = header.record_count
        goal = max(0, left - count_max)
        while left > goal:
            if left <= look_at and offset + 1 == header.base_offset + (due >> 1):
                shape, count, room = None, 0, left - goal
                if room > RUN_MIN:
                    shape, count = self._shapes.run(data, position, room, due >> 1, known_only=left == first)
                if count and shape is not None:
                    found += _run(topic, partition, data, header, shape, position, count, offset + 1)
                    position += count * shape.size
                    offset += count
                    due += 2 * count
                    left -= count
                    look_at = left if count == room else left - 1
                    look_less = _LOOK_AGAIN_RECORDS
                    continue
                if left != first:
                    look_less *= 2
                look_at = left - (1 if left == first else look_less)
            left -= 1
            byte = data[position]
            if byte & 1:
                raise InvalidRecord("a record of negative length")
            if byte < 0x80:
                end = position + 1 + (byte >> 1)
                position += 3
            elif (high := data[position + 1]) < 0x80:
                end = position + 2 + ((byte & 0x7F | high << 7) >> 1)
                position += 4
            else:
                size, position = read_varint(data, position)
                end = position + size
                position += 2

            byte = data[position - 1]
            if byte < 0x80:
                timestamp = base_timestamp + zigzag[byte]
            elif (high := data[position]) < 0x80:
                byte = byte & 0x7F | high << 7
                timestamp = base_timestamp + ((byte >> 1) ^ -(byte & 1))
                position += 1
            else:
                timestamp, position = read_varlong(data, position - 1)
                timestamp += base_timestamp

            # Nearly always the next offset follows, whose delta in zigzag is `due`; only compaction leaves gaps.
            start = position
            byte = data[position]
            position += 1
            if byte >= 0x80 and (high := data[position]) < 0x80:
                byte = byte & 0x7F | high << 7
                position += 1
            if byte == due:
                offset += 1
            else:
                delta, position = read_varint(data, start)
                offset, due = _after_gap(header, offset, delta)
            due += 2

            byte = data[position]
            position += 1
            if byte & 1:
                if byte != 1:
                    raise InvalidRecord("a key of negative length")
                key = None
            else:
                if byte < 0x80:
                    size = byte >> 1
                else:
                    size, position = read_varint(data, position - 1)
                key = data[position : position + size]
                position += size

            byte = data[position]
            position += 1
            if byte & 1:
                if byte != 1:
                    raise InvalidRecord("a value of negative length")
                value = None
            else:
                if byte < 0x80:
                    size = byte >> 1
                elif (high := data[position]) < 0x80:
                    size = (byte & 0x7F | high << 7) >> 1
                    position += 1
                else:
                    size, position = read_varint(data, position - 1)
                value = data[position : position + size]
                position += size

            headers: tuple[Header, ...] = ()
            if data[position]:
                headers, position = _parse_headers(data, position)
            else:
                position += 1
            if position != end:
                raise InvalidRecord(f"a record ends {position - end} bytes behind its length")
            if timestamp_type:
                timestamp = append_time
            append(
                new((topic, partition, offset, timestamp, key, value, headers, leader_epoch, timestamp_type))
            )
        if offset > header.last_offset:
            del found[max(0, len(found) - (offset - header.last_offset)) :]
            raise InvalidRecord(f"offset {offset} behind the batch's last, {header.last_offset}")
        if left:
            self._place = (position, offset, due, left, look_at, look_less)
            return
        if position != len(data):
            raise InvalidRecord(f"{len(data) - position} bytes behind the last of {first} records")
        self.is_used_up = True


def _run(
    topic: str,
    partition: int,
    data: bytes,
    header: BatchHeader,
    shape: Shape,
    position: int,
    count: int,
    offset: int,
) -> Iterable[ConsumerRecord]:
    """The records of a run whose shape is proved, made without a step of Python for each."""
    keys, values = shape.keys_and_values(data, position, count)
    timestamps: Iterable[int] = (
        repeat(header.max_timestamp, count)
        if header.timestamp_type
        else shape.timestamps(data, position, count, header.base_timestamp)
    )
    columns = zip(
        repeat(topic, count),
        repeat(partition, count),
        range(offset, offset + count),
        timestamps,
        keys,
        values,
        repeat((), count),
        repeat(header.partition_leader_epoch, count),
        repeat(header.timestamp_type, count),
        strict=True,
    )
    return map(tuple.__new__, repeat(ConsumerRecord, count), columns)


def _after_gap(header: BatchHeader, offset: int, delta: int) -> tuple[int, int]:
    """The offset of a record that is not the one after `offset`, and its delta in zigzag."""
    found = header.base_offset + delta
    if not offset < found <= header.last_offset:
        raise InvalidRecord(f"offset {found} behind {offset}, the batch's last is {header.last_offset}")
    return found, 2 * delta


def _parse_headers(data: bytes, position: int) -> tuple[tuple[Header, ...], int]:
    count, position = read_varint(data, position)
    if count < 0:
        raise InvalidRecord(f"{count} record headers")
    headers: list[Header] = []
    for _ in range(count):
        size, position = read_varint(data, position)
        if size < 0:
            raise InvalidRecord("a record header without a key")
        key = data[position : position + size].decode(errors="replace")  # as Java's clients
        position += size
        size, position = read_varint(data, position)
        if size < -1:
            raise InvalidRecord(f"record header value of {size} bytes")
        if size == -1:
            headers.append((key, None))
        else:
            headers.append((key, data[position : position + size]))
            position += size
    return tuple(headers), position
