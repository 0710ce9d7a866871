"""Avro: the same values as fastavro reads, and a bound for what a hostile schema or value may cost."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.console.decoding.avro_data import read_avro
from odradek.console.decoding.avro_schema import parse_avro_schema
from odradek.console.decoding.decoded import DecodingError, Json

INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
PRIMITIVES: list[tuple[Json, st.SearchStrategy[object]]] = [
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", INTS),
    ("long", LONGS),
    ("double", st.floats(allow_nan=False)),
    ("string", st.text()),
    ({"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}, st.sampled_from(["A", "B", "C"])),
]


def encoded(schema: object, value: object) -> bytes:
    """Encode a value by fastavro."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


@st.composite
def schemas_and_values(draw: st.DrawFn) -> tuple[object, object]:
    """Draw a record with some fields, arrays, maps and unions, and a value of it."""
    fields, value = [], {}
    for number in range(draw(st.integers(0, 5))):
        schema, values = PRIMITIVES[draw(st.integers(0, len(PRIMITIVES) - 2))]
        match draw(st.integers(0, 3)):
            case 0:
                schema, values = {"type": "array", "items": schema}, st.lists(values, max_size=4)
            case 1:
                schema, values = (
                    {"type": "map", "values": schema},
                    st.dictionaries(st.text(), values, max_size=4),
                )
            case 2 if schema != "null":
                schema, values = ["null", schema], st.none() | values
        fields.append({"name": f"f{number}", "type": schema})
        value[f"f{number}"] = draw(values)
    return {"type": "record", "name": "R", "namespace": "a.b", "fields": fields}, value


@given(schemas_and_values())
def test_values_are_those_that_fastavro_writes(drawn: tuple[object, object]) -> None:
    """What fastavro has written is read as the same value."""
    schema, value = drawn
    assert read_avro(parse_avro_schema(json.dumps(schema)), encoded(schema, value)) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_an_error(data: bytes) -> None:
    """No bytes raise another error than `DecodingError`."""
    schema = parse_avro_schema(
        json.dumps(
            {
                "type": "record",
                "name": "N",
                "fields": [
                    {"name": "x", "type": ["null", "long", "N", {"type": "array", "items": "N"}]},
                    {"name": "y", "type": {"type": "map", "values": ["bytes", "double"]}},
                ],
            }
        )
    )
    with suppress(DecodingError):
        read_avro(schema, data)


def test_logical_types_are_texts() -> None:
    """Dates, moments, decimals and UUIDs are shown as people write them."""
    types = {
        "day": {"type": "int", "logicalType": "date"},
        "moment": {"type": "long", "logicalType": "timestamp-millis"},
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "id": {"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"},
    }
    schema = {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in types.items()]}
    moment = datetime(2026, 2, 3, 4, 5, 6, 7000, tzinfo=UTC)
    number = UUID(int=5)
    data = encoded(
        {**schema, "fields": schema["fields"][:3]},
        {"day": date(2026, 2, 3), "moment": moment, "price": Decimal("-12.50")},
    )
    found = read_avro(parse_avro_schema(json.dumps(schema)), data + number.bytes)
    assert found == {
        "day": "2026-02-03",
        "moment": "2026-02-03T04:05:06.007000Z",
        "price": "-12.50",
        "id": str(number),
    }


def test_a_number_beyond_the_calendar_stays_a_number() -> None:
    """A moment beyond all calendars is shown as it is."""
    schema = parse_avro_schema('{"type": "long", "logicalType": "timestamp-millis"}')
    assert read_avro(schema, encoded("long", 2**62)) == 2**62


def test_types_of_references_are_known() -> None:
    """A schema may use named types of other schemas."""
    other = '{"type": "record", "namespace": "a", "name": "Point", "fields": [{"name": "x", "type": "int"}]}'
    schema = parse_avro_schema('{"type": "array", "items": "a.Point"}', [other])
    assert read_avro(schema, b"\x02\x0a\x00") == [{"x": 5}]


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        (
            '{"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}',
            b"\x02" * 1_000_000,
        ),
        ('{"type": "array", "items": "null"}', b"\x80\xa0\x94\xa5\x8d\x1d\x00"),
        (
            '{"type": "array", "items": {"type": "record", "name": "E", "fields": []}}',
            b"\x80\xa0\x94\xa5\x8d\x1d\x00",
        ),
        ('{"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}', b"\xff" * 9 + b"\x01\x00"),
        (
            '{"type": "array", "items": {"type": "fixed", "name": "F", "size": 1, '
            '"logicalType": "decimal", "precision": 1000, "scale": 999}}',
            b"\xc0\x9a\x0c" + b"\x01" * 100_000 + b"\x00",
        ),
        ('{"type": "fixed", "name": "F", "size": 2147483647}', b"x"),
        ('"bytes"', b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ('"string"', b"\x01"),
        ('"long"', b"\xff" * 11),
        (
            json.dumps({"type": "array", "items": {"type": "enum", "name": "E", "symbols": ["x" * 100_000]}}),
            b"\xd0\x0f" + b"\x00" * 1000 + b"\x00",
        ),
        (
            json.dumps(
                {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "R",
                        "fields": [{"name": "n" * 100_000, "type": "null"}],
                    },
                }
            ),
            b"\xd0\x0f\x00",
        ),
    ],
)
def test_bombs_are_refused(schema: str, data: bytes) -> None:
    """A value that is deeper, or larger, than can be shown is refused: the first one ends a process with fastavro."""
    with pytest.raises(DecodingError):
        read_avro(parse_avro_schema(schema), data)


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "{",
        "[" * 100_000,
        '{"type": ' * 1000 + '"int"' + "}" * 1000,
        '"a.Missing"',
        "5",
        '{"type": "record"}',
        '{"type": "record", "name": "R", "fields": [5]}',
        '{"type": "record", "name": "R", "fields": [{"name": 5, "type": "int"}]}',
        '{"type": "fixed", "name": "F", "size": -1}',
        '{"type": "fixed", "name": "F", "size": true}',
        '{"type": "enum", "name": "E"}',
        '{"type": null}',
        json.dumps([["null"] * 200 for _ in range(200)]),
    ],
)
def test_schemas_that_cannot_be_read_are_refused(schema: str) -> None:
    """A hostile schema is an error with a sentence."""
    with pytest.raises(DecodingError, match="the Avro schema cannot be read"):
        parse_avro_schema(schema)
