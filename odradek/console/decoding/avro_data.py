"""Reads Avro's binary data by a schema, within limits. PURE.

There is a reason to read it here. fastavro 1.13 reads recursive schemas on the stack of C, so a value of one
megabyte ends the process. An array of nulls takes six bytes, and as much memory as its count says. Here the
depth and the work are limited. Each value costs a step, and so does each character of a name that is shown.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from struct import Struct

from odradek.console.decoding.avro_schema import AvroType
from odradek.console.decoding.decoded import DecodingError, Json
from odradek.console.decoding.steps import Steps

__all__ = ["read_avro"]

DEPTH_MAX = 64
_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DECIMAL_BYTES_MAX = 256
_EXACT = Context(prec=1000)


def read_avro(schema: AvroType, data: bytes, steps: Steps | None = None) -> Json:
    """Read one value. Raises `DecodingError` if the bytes do not fit, or the value is too large to show."""
    reader = _Reader(data, steps or Steps())
    try:
        found = reader.read(schema, 0)
    except (IndexError, struct.error):
        raise DecodingError("the bytes end before the value that the Avro schema describes") from None
    if reader.position != len(data):
        left = len(data) - reader.position
        raise DecodingError(f"{left} bytes follow the value that the Avro schema describes")
    return found


class _Reader:
    def __init__(self, data: bytes, steps: Steps) -> None:
        self._data = data
        self.position = 0
        self._steps = steps

    def read(self, schema: AvroType, depth: int) -> Json:
        if depth > DEPTH_MAX:
            raise DecodingError(f"the value is nested more than {DEPTH_MAX} levels deep")
        self._steps.spend(1)
        match schema.kind:
            case "null":
                return None
            case "boolean":
                return self._take(1)[0] != 0
            case "int" | "long":
                return _logical_number(schema, self._long())
            case "float":
                return float(_FLOAT.unpack(self._take(4))[0])
            case "double":
                return float(_DOUBLE.unpack(self._take(8))[0])
            case "bytes":
                return self._bytes(schema, self._take(self._length()))
            case "fixed":
                return self._bytes(schema, self._take(schema.size))
            case "string":
                return self._string()
            case "enum":
                return self._symbol(schema)
            case "union":
                return self.read(self._branch(schema), depth + 1)
            case "array":
                return self._array(schema, depth)
            case "map":
                return self._map(schema, depth)
            case _:
                return self._record(schema, depth)

    def _record(self, schema: AvroType, depth: int) -> Json:
        found: dict[str, Json] = {}
        for field in schema.fields:
            self._steps.spend(len(field.name))
            found[field.name] = self.read(field.type, depth + 1)
        return found

    def _array(self, schema: AvroType, depth: int) -> Json:
        assert schema.items is not None
        found: list[Json] = []
        while count := self._block():
            for _ in range(count):
                found.append(self.read(schema.items, depth + 1))
        return found

    def _map(self, schema: AvroType, depth: int) -> Json:
        assert schema.items is not None
        found: dict[str, Json] = {}
        while count := self._block():
            for _ in range(count):
                name = self._string()
                found[name] = self.read(schema.items, depth + 1)
        return found

    def _block(self) -> int:
        """Read the number of elements of the next block; 0 ends an array or a map."""
        count = self._long()
        if count < 0:
            # The size of the block in bytes follows, for readers that skip it.
            self._long()
            count = -count
        if count > self._steps.left:
            raise DecodingError(self._steps.reason)
        self._steps.spend(1)
        return count

    def _symbol(self, schema: AvroType) -> str:
        index = self._long()
        if not 0 <= index < len(schema.symbols):
            raise DecodingError(f"the enum has no symbol {index}")
        self._steps.spend(len(schema.symbols[index]))
        return schema.symbols[index]

    def _branch(self, schema: AvroType) -> AvroType:
        index = self._long()
        if not 0 <= index < len(schema.branches):
            raise DecodingError(f"the union has no branch {index}")
        return schema.branches[index]

    def _bytes(self, schema: AvroType, data: bytes) -> str:
        text = _logical_bytes(schema, data)
        # One byte and a scale of 999 are a decimal of a thousand digits.
        self._steps.spend_bytes(max(0, len(text) - len(data)))
        return text

    def _string(self) -> str:
        data = self._take(self._length())
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise DecodingError("a string of the value is no UTF-8") from None

    def _length(self) -> int:
        length = self._long()
        if length < 0:
            raise DecodingError(f"a part of the value has the length {length}")
        return length

    def _long(self) -> int:
        number = shift = 0
        while True:
            byte = self._data[self.position]
            self.position += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
            shift += 7
            if shift > 63:
                raise DecodingError("a number of the value has more than 64 bits")

    def _take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self._data):
            raise IndexError
        self._steps.spend_bytes(count)
        found = self._data[self.position : end]
        self.position = end
        return found


_TICKS = {
    "timestamp-millis": 1000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1000,
    "local-timestamp-micros": 1,
}
"""The microseconds of one unit of each type of moments."""


def _logical_number(schema: AvroType, number: int) -> Json:
    """Write a date, a moment or a time of day as ISO 8601; a number beyond the calendar stays a number."""
    try:
        if schema.logical == "date":
            return (_EPOCH + timedelta(days=number)).date().isoformat()
        if schema.logical in _TICKS:
            moment = _EPOCH + timedelta(microseconds=number * _TICKS[schema.logical])
            text = moment.replace(tzinfo=None).isoformat(timespec="microseconds")
            return text if schema.logical.startswith("local") else f"{text}Z"
        if schema.logical in ("time-millis", "time-micros"):
            ticks = number * (1000 if schema.logical == "time-millis" else 1)
            return (_EPOCH + timedelta(microseconds=ticks)).time().isoformat(timespec="microseconds")
    except (OverflowError, ValueError):
        return number
    return number


def _logical_bytes(schema: AvroType, data: bytes) -> str:
    """Write bytes as Avro's JSON does, one character for each byte; decimals and UUIDs as texts."""
    if schema.logical == "decimal" and len(data) <= _DECIMAL_BYTES_MAX:
        number = Decimal(int.from_bytes(data, "big", signed=True))
        return f"{number.scaleb(-min(schema.scale, 999), _EXACT):f}"
    if schema.logical == "uuid" and len(data) == 16:
        text = data.hex()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    return data.decode("latin-1")
