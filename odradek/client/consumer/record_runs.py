"""Runs of records of one shape, parsed by columns instead of one by one. PURE.

In many topics (telemetry, prices, ids) the records have no headers, all keys have one size, and all values
have one size. In a batch such records lie like the rows of a table. The bytes at the same place in all rows
are one strided slice, which C code compares and cuts at once. Parsing a run takes a fifth of the time of
parsing its records one by one. The offset deltas grow from one to two to three bytes, so a batch of some
thousand records is two or three runs.

`Shape.of` reads the first record. `run_length` then counts how many of the following records have the same
shape. It compares every byte outside of the keys and values. Records that do not fit are left to the parser
of single records.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from struct import Struct

import attrs

__all__ = ["RUN_MIN", "LastShapes", "Shape"]

RUN_MIN = 8
"""The smallest number of records for which a run is worth the check."""
_DELTAS_MAX = 1 << 16
_KNOWN_MAX = 4
"""The number of shapes that are remembered. One long batch needs up to three, one for each size of its offset deltas.
"""
_ZIGZAG = tuple((byte >> 1) ^ -(byte & 1) for byte in range(0x80))


def _columns_of_deltas() -> tuple[bytes, bytes, bytes]:
    """Return the zigzag varints of 0, 1, 2, ... as three columns: all first bytes, all second bytes, all third bytes.
    A missing byte is zero.
    """
    # A zigzag varint of a delta holds 2 * delta: its low 7 bits change with each delta, its high bits every 64 deltas.
    first = bytes(range(0, 0x80, 2)) + bytes(range(0x80, 0x100, 2)) * (_DELTAS_MAX // 64 - 1)
    second = b"".join(
        bytes([each & 0x7F | (0x80 if each > 0x7F else 0)]) * 64 for each in range(_DELTAS_MAX // 64)
    )
    third = b"".join(bytes([each]) * 0x2000 for each in range(_DELTAS_MAX // 0x2000))
    return first, second, third


_DELTAS = _columns_of_deltas()


@attrs.frozen
class Shape:
    """The layout of a record: the positions of its parts, counted from its first byte.

    A `key_size` or `value_size` of -1 means null.
    """

    size: int
    timestamp: int
    offset: int
    key: int
    key_size: int
    value: int
    value_size: int
    fixed: tuple[int, ...]
    """The positions of the bytes that are equal in all records of the shape: lengths, and the number of headers."""
    fixed_bytes: tuple[int, ...]
    """The bytes at the positions `fixed`, in the same order."""
    offset_size: int
    """The number of bytes of the offset delta in each record."""
    key_rows: Struct | None
    """A format that extracts the key of each record of a run; None if the keys are null."""
    value_rows: Struct | None

    @classmethod
    def of(cls, data: bytes, position: int) -> Shape | None:
        """Return the shape of the record that begins at `position`. Return None if the record has headers, or
        a length of more than three bytes.

        Raises `IndexError` if the data ends before the record does.
        """
        body, place = _length(data, position)
        size = place - position + body
        timestamp = place + 1
        offset = _behind(data, timestamp)
        key_length = _behind(data, offset)
        key_size, key = _length(data, key_length)
        value_length = key + max(key_size, 0)
        value_size, value = _length(data, value_length)
        headers = value + max(value_size, 0)
        if min(key_size, value_size) < -1 or headers + 1 != position + size or data[headers]:
            return None
        if offset - timestamp > 2 or key_length - offset > 3:
            return None
        fixed = [*range(position, place), *range(key_length, key), *range(value_length, value), headers]
        return cls(
            size,
            timestamp - position,
            offset - position,
            key - position,
            key_size,
            value - position,
            value_size,
            tuple(each - position for each in fixed),
            tuple(data[each] for each in fixed),
            key_length - offset,
            _rows(key - position, key_size, size),
            _rows(value - position, value_size, size),
        )

    def begins_at(self, data: bytes, position: int) -> bool:
        """True if the record at `position` has the lengths of this shape. Then a run of this shape may begin
        there.

        `run_length` checks all other bytes. Raises `IndexError` if the data ends before the record does.
        """
        for place, byte in zip(self.fixed, self.fixed_bytes, strict=True):
            if data[position + place] != byte:
                return False
        return True

    def run_length(self, data: bytes, position: int, count_max: int, delta: int) -> int:
        """Count how many of the next `count_max` records have this shape. `delta` is the offset delta of the
        first record. Return 0 if there are fewer than `RUN_MIN` such records.
        """
        size = self.size
        count = min(count_max, (len(data) - position) // size, _DELTAS_MAX - delta)
        if count < RUN_MIN:
            return 0
        for place in self.fixed:
            column = data[position + place : position + count * size : size]
            count = count - len(column.lstrip(column[:1]))
            if count < RUN_MIN:
                return 0
        end = position + count * size
        offset_size = self.offset_size
        for index in range(offset_size):
            column = data[position + self.offset + index : end : size]
            if column != _DELTAS[index][delta : delta + count]:
                return 0
        if offset_size < 3 and _DELTAS[offset_size - 1][delta + count - 1] & 0x80:
            return 0
        first = data[position + self.timestamp : end : size]
        if self.offset - self.timestamp == 1:
            return count if max(first) < 0x80 else 0
        second = data[position + self.timestamp + 1 : end : size]
        return count if min(first) >= 0x80 and max(second) < 0x80 else 0

    def timestamps(self, data: bytes, position: int, count: int, base: int) -> list[int]:
        """Decode the timestamps (ms) of a run of `count` records. `base` is the batch's base timestamp."""
        end = position + count * self.size
        first = data[position + self.timestamp : end : self.size]
        if self.offset - self.timestamp == 1:
            return [base + _ZIGZAG[byte] for byte in first]
        second = data[position + self.timestamp + 1 : end : self.size]
        return [
            base + ((value >> 1) ^ -(value & 1))
            for value in (low & 0x7F | high << 7 for low, high in zip(first, second, strict=True))
        ]

    def keys_and_values(
        self, data: bytes, position: int, count: int
    ) -> tuple[Iterator[bytes | None], Iterator[bytes | None]]:
        """Return the keys and the values of a run of `count` records. A null key or value is None."""
        run = memoryview(data)[position : position + count * self.size]
        keys, values = self.key_rows, self.value_rows
        return (
            repeat(None, count) if keys is None else chain.from_iterable(keys.iter_unpack(run)),
            repeat(None, count) if values is None else chain.from_iterable(values.iter_unpack(run)),
        )


class LastShapes:
    """The shapes of the last runs. Batches of a topic often have the same shapes, and checking a known shape takes
    less time than finding a new one.
    """

    __slots__ = ("_shapes",)

    def __init__(self) -> None:
        self._shapes: list[Shape] = []

    def run(
        self, data: bytes, position: int, count_max: int, delta: int, *, known_only: bool
    ) -> tuple[Shape | None, int]:
        """Find a shape for the next records: a known shape or (unless `known_only`) a new one. Return the
        shape and the number of records that have it. If no run begins here, the number is 0, and the shape
        may be None.

        Raises `IndexError` if the data ends before the record does.
        """
        for known in self._shapes:
            if known.begins_at(data, position):
                count = known.run_length(data, position, count_max, delta)
                if count:
                    return known, count
        shape = None if known_only else Shape.of(data, position)
        count = shape.run_length(data, position, count_max, delta) if shape is not None else 0
        if count and shape is not None:
            self._shapes = [shape, *self._shapes[: _KNOWN_MAX - 1]]
        return shape, count


def _rows(place: int, part_size: int, size: int) -> Struct | None:
    return None if part_size < 0 else Struct(f"{place}x{part_size}s{size - place - part_size}x")


def _length(data: bytes, position: int) -> tuple[int, int]:
    """Decode a length, which is a zigzag varint. Return the length and the position after it. The returned
    length is -2 if the varint has more than three bytes.
    """
    value = shift = 0
    for at in range(position, position + 3):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + 1
        shift += 7
    return -2, position


def _behind(data: bytes, position: int) -> int:
    """Return the position after the varint that begins at `position`."""
    while data[position] >= 0x80:
        position += 1
    return position + 1
