"""A bounded reader of pushed metrics: gauges and sums in OTLP's message `MetricsData`. PURE.

Clients push a protobuf message (OpenTelemetry's protocol, version 1). A node needs only a few numbers of the
message, whose names it knows. So this reader skips all other fields without decoding them. The levels are
fixed: resource, scope, metric, point. So the reader needs no recursion, and it reads a bounded number of
fields.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from math import isfinite
from struct import Struct

import attrs

__all__ = ["FIELDS_MAX", "MalformedMetrics", "Point", "TooManyFields", "read_points"]

FIELDS_MAX = 100_000
"""The most fields that are read from one payload. A consumer of 2,000 partitions pushes about that many.
Reading them takes some 50 ms.
"""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE, _INT64 = Struct("<d"), Struct("<q")
_DELTA = 1
"""The value of `AGGREGATION_TEMPORALITY_DELTA`: the sum counts from the previous push on."""


class MalformedMetrics(ValueError):
    """Raised if the bytes are not a valid `MetricsData` message."""


class TooManyFields(ValueError):
    """Raised if the payload has more fields than one push may have."""


@attrs.frozen(slots=True)
class Point:
    """One number of a metric."""

    name: bytes
    value: float
    is_sum: bool
    """True for a count since the previous push, False for a gauge."""
    is_labelled: bool
    """True if the point has labels, and so is about one node, topic or partition."""


def read_points(data: bytes, wanted: Container[bytes], fields_max: int = FIELDS_MAX) -> list[Point]:
    """Read all points of the metrics whose names are in `wanted`, in the payload's order. Cumulative sums,
    infinite numbers and NaN are left out.

    Raises:
        MalformedMetrics: the bytes are not a valid `MetricsData` message.
        TooManyFields: the payload has more than `fields_max` fields.
    """
    reader = _Reader(data, fields_max)
    found: list[Point] = []
    for start, end in reader.inner(1, 0, len(data)):
        for scope_start, scope_end in reader.inner(2, start, end):
            for metric_start, metric_end in reader.inner(2, scope_start, scope_end):
                reader.read_metric(metric_start, metric_end, wanted, found)
    return found


class _Reader:
    """A reader of one payload. Each call gets a position in the payload as an argument. The reader itself
    stores only the number of fields.
    """

    __slots__ = ("_data", "_left")

    def __init__(self, data: bytes, fields_max: int) -> None:
        self._data = data
        self._left = fields_max

    def read_metric(self, start: int, end: int, wanted: Container[bytes], found: list[Point]) -> None:
        """Append the points of one metric to `found`, if its name is in `wanted`."""
        name = b""
        parts: list[tuple[bool, int, int]] = []
        for number, wire, at, stop in self._fields(start, end):
            if wire != _BYTES:
                continue
            if number == 1:
                name = self._data[at:stop]
            elif number in (5, 7):
                parts.append((number == 7, at, stop))
        if name not in wanted:
            return
        for is_sum, at, stop in parts:
            self._read_points(name, is_sum, at, stop, found)

    def _read_points(self, name: bytes, is_sum: bool, start: int, end: int, found: list[Point]) -> None:
        spans: list[tuple[int, int]] = []
        temporality = 0
        for number, wire, at, stop in self._fields(start, end):
            if number == 1 and wire == _BYTES:
                spans.append((at, stop))
            elif number == 2 and wire == _VARINT:
                temporality = at
        if is_sum and temporality != _DELTA:
            return
        for at, stop in spans:
            value, is_labelled = self._read_point(at, stop)
            if isfinite(value):
                found.append(Point(name, value, is_sum, is_labelled))

    def _read_point(self, start: int, end: int) -> tuple[float, bool]:
        value, is_labelled = 0.0, False
        for number, wire, at, _ in self._fields(start, end):
            if number == 4 and wire == _FIXED64:
                value = _DOUBLE.unpack_from(self._data, at)[0]
            elif number == 6 and wire == _FIXED64:
                value = float(_INT64.unpack_from(self._data, at)[0])
            elif number == 7:
                is_labelled = True
        return value, is_labelled

    def inner(self, wanted: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each message in the repeated field `wanted`."""
        for number, wire, at, stop in self._fields(start, end):
            if number == wanted and wire == _BYTES:
                yield at, stop

    def _fields(self, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield each field's number, wire type, and the start and end of its value.

        For a varint, the value itself is yielded in place of the start.
        """
        data = self._data
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise TooManyFields("more fields than one push may have")
            key, at = self._varint(at, end)
            number, wire = key >> 3, key & 7
            if wire == _VARINT:
                value, at = self._varint(at, end)
                yield number, wire, value, at
                continue
            if wire == _BYTES:
                size, at = (data[at], at + 1) if at < end and data[at] < 0x80 else self._varint(at, end)
            elif wire == _FIXED64:
                size = 8
            elif wire == _FIXED32:
                size = 4
            else:
                raise MalformedMetrics(f"wire type {wire}")
            stop = at + size
            if not number or stop > end:
                raise MalformedMetrics("a field is longer than the message that contains it")
            yield number, wire, at, stop
            at = stop

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        data = self._data
        while at < end and shift < 70:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
        raise MalformedMetrics("a variable-length number is cut off")
