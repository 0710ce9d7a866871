"""Converts a fetched batch to the records for the application. This loop limits the speed of a consumer more than any
other code. PURE.

A small batch may have very many records. So only some records are made at a time, when the application polls
for them. But the bytes of a batch are decompressed all at once. Records of one shape are parsed by columns
(`record_runs.py`). All other records are parsed by `odradek.wire.batches.records.parse_fields`, in about half
a microsecond per record. In both cases C code makes the `ConsumerRecord` tuples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

from odradek.client.consumer.consumer_types import ConsumerRecord
from odradek.client.consumer.record_runs import RUN_MIN, LastShapes, Shape
from odradek.wire.batches.batch_errors import CorruptBatch, InvalidRecord
from odradek.wire.batches.batch_header import HEADER_SIZE, BatchHeader, check_crc
from odradek.wire.batches.compression import decompress
from odradek.wire.batches.records import HEADERS_ANY, Header, parse_fields

__all__ = ["BatchRecords"]

_LOOK_AGAIN_RECORDS = 8
"""The number of records to parse one by one after a search for a run has failed. This number doubles with
each further failure, so that failed searches cost little.
"""


class BatchRecords:
    """The records of the batch that begins at `position` of `data` and whose header is `header`.

    The caller passes the same `last_shapes` for all batches. Raises `CorruptBatch`, `InvalidRecord` (both
    `KafkaError`), as `odradek.wire.batches.records.records` does. An error in a record is raised by the call of
    `take` that begins at this record.
    """

    __slots__ = (
        "_data",
        "_error",
        "_partition",
        "_place",
        "_shapes",
        "_topic",
        "header",
        "headers_max",
        "is_used_up",
    )

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
                f"{topic}-{partition}: the checksum of the batch at offset {header.base_offset} is wrong"
            )
        body = data[position + HEADER_SIZE : position + header.size]
        self._data = decompress(header.compression_type, body, decompressed_bytes_max)
        count = header.record_count
        if count < 0:
            raise InvalidRecord(f"a batch claims {count} records, too many for its bytes")
        self.header = header
        self._topic = topic
        self._partition = partition
        self._shapes = last_shapes
        self.headers_max = HEADERS_ANY
        """A record with more headers is refused."""
        self._error: InvalidRecord | None = None
        # The state of the parser: the position in the data, twice the next offset delta (zigzag), the number of records
        # left, and the number of records left at which the next search for a run is due. The first record's timestamp
        # delta is always 0, which often takes fewer bytes than later deltas. So a run of one shape usually begins at
        # the second record.
        self._place = (0, 0, count, count, _LOOK_AGAIN_RECORDS)
        self.is_used_up = False
        """True once all records were taken without an error."""

    def take(self, count_max: int) -> list[ConsumerRecord]:
        """Decode the next records, at most `count_max`. Stop before a record that cannot be decoded; the next call
        raises its error.
        """
        if self._error is not None:
            raise self._error
        found: list[ConsumerRecord] = []
        try:
            self._parse(found, count_max)
        except IndexError:
            self._error = InvalidRecord("a record is longer than the batch that holds it")
        except InvalidRecord as error:
            self._error = error
        if self._error is not None and not found:
            raise self._error
        return found

    def _parse(self, found: list[ConsumerRecord], count_max: int) -> None:
        """Parse records into `found`: runs of one shape by columns, all other records one by one."""
        header, data = self.header, self._data
        position, due, left, look_at, look_less = self._place
        first = header.record_count
        goal = max(0, left - count_max)
        single: list[Any] = []  # the five fields of each record, one record after the other
        try:
            while left > goal:
                room = left - goal
                if left <= look_at and room > RUN_MIN:
                    offsets_left = header.last_offset_delta + 1 - (due >> 1)
                    shape, count = self._shapes.run(
                        data, position, min(room, offsets_left), due >> 1, known_only=left == first
                    )
                    if count and shape is not None:
                        found += self._records(*repeat(iter(single), 5))
                        single = []
                        found += self._run(shape, position, count, header.base_offset + (due >> 1))
                        position += count * shape.size
                        due += 2 * count
                        left -= count
                        look_at = left if count == room else left - 1
                        look_less = _LOOK_AGAIN_RECORDS
                        continue
                    if left != first:
                        look_less *= 2
                    look_at = left - (1 if left == first else look_less)
                count = left - look_at if goal < look_at < left else room
                position, due = parse_fields(
                    single,
                    data,
                    position,
                    count,
                    due,
                    header,
                    key_errors="replace",
                    headers_max=self.headers_max,
                )
                left -= count
        finally:
            found += self._records(*repeat(iter(single), 5))
        if left:
            self._place = (position, due, left, look_at, look_less)
            return
        if position != len(data):
            raise InvalidRecord(
                f"{len(data) - position} unexpected bytes follow the last of the batch's {first} records"
            )
        self.is_used_up = True

    def _run(self, shape: Shape, position: int, count: int, offset: int) -> Iterable[ConsumerRecord]:
        """Make the next `count` records, which all have the layout `shape`, column by column."""
        header, data = self.header, self._data
        keys, values = shape.keys_and_values(data, position, count)
        timestamps: Iterable[int] = (
            repeat(header.max_timestamp, count)
            if header.timestamp_type
            else shape.timestamps(data, position, count, header.base_timestamp)
        )
        return self._records(iter(range(offset, offset + count)), iter(timestamps), keys, values, repeat(()))

    def _records(
        self,
        offsets: Iterator[int],
        timestamps: Iterator[int],
        keys: Iterator[bytes | None],
        values: Iterator[bytes | None],
        headers: Iterator[tuple[Header, ...]],
    ) -> Iterable[ConsumerRecord]:
        """Make records from columns of offsets, timestamps, keys, values and headers, until the offsets end. No
        Python code runs per record.

        The same iterator may be passed for all columns: it then yields the fields of each record in turn.
        """
        rows = zip(
            repeat(self._topic),
            repeat(self._partition),
            offsets,
            timestamps,
            keys,
            values,
            headers,
            repeat(self.header.partition_leader_epoch),
            repeat(self.header.timestamp_type),
            strict=False,
        )
        return map(tuple.__new__, repeat(ConsumerRecord), rows)
