"""The reader of pushed OTLP metrics finds the wanted metrics, skips the others, and withstands any bytes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.data_plane.telemetry.otlp import (
    FIELDS_MAX,
    MalformedMetrics,
    Point,
    TooManyFields,
    read_points,
)
from tests.schedule import examples
from tests.telemetry.encoding import PushedMetric, field, metrics_data, pushed_by, varint

WANTED = {b"a", b"b"}
REAL = ("librdkafka_producer", "librdkafka_consumer", "java_producer", "java_consumer")
VALUES = st.floats() | st.integers(-(1 << 63), (1 << 63) - 1)
METRICS = st.lists(
    st.builds(
        PushedMetric,
        st.sampled_from(["a", "b", "c", ""]),
        st.lists(st.tuples(VALUES, st.booleans()), max_size=4).map(tuple),
        st.booleans(),
        st.sampled_from([0, 1, 2]),
    ),
    max_size=6,
)
NOISE = st.sampled_from(
    [
        b"",
        field(15, b"unknown"),
        varint(99 << 3) + varint(1 << 63),
        varint(12 << 3 | 1) + bytes(8),
        varint(13 << 3 | 5) + bytes(4),
    ]
)


class Everything:
    """A set that contains every name."""

    def __contains__(self, name: object) -> bool:
        return True


@settings(max_examples=examples(300))
@given(METRICS, NOISE)
def test_all_numbers_of_wanted_metrics_are_found(metrics: list[PushedMetric], noise: bytes) -> None:
    """Finite values of wanted gauges and deltas are found in order, whatever else the message contains."""
    expected = [
        Point(each.name.encode(), float(value), each.is_sum, is_labelled)
        for each in metrics
        if each.name.encode() in WANTED and (not each.is_sum or each.temporality == 1)
        for value, is_labelled in each.points
        if math.isfinite(value)
    ]
    assert read_points(metrics_data(*metrics, noise=noise), WANTED) == expected


@settings(max_examples=examples(500))
@given(st.data())
def test_no_bytes_confuse_it(data: st.DataObject) -> None:
    """Any bytes, and any change of a real payload, are read or refused."""
    payload = bytearray(
        data.draw(st.binary(max_size=60))
        if data.draw(st.booleans())
        else pushed_by(data.draw(st.sampled_from(REAL)))[: data.draw(st.integers(1, 3000))]
    )
    for _ in range(data.draw(st.integers(0, 4))):
        if payload:
            payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read_points(bytes(payload), Everything())
    except (MalformedMetrics, TooManyFields):
        return
    assert all(math.isfinite(point.value) for point in found)


@pytest.mark.parametrize("name", REAL)
def test_a_payload_that_is_cut_is_refused_or_shorter(name: str) -> None:
    """A payload that is cut within a message is refused. If it is cut between two messages, the rest is read."""
    whole = pushed_by(name)
    points = read_points(whole, Everything())
    refused = 0
    cuts = range(0, len(whole), max(1, len(whole) // 200))
    for end in cuts:
        try:
            found = read_points(whole[:end], Everything())
        except MalformedMetrics:
            refused += 1
        else:
            assert found == points[: len(found)]
    assert refused > len(cuts) // 2


@pytest.mark.parametrize(
    "data",
    [
        *(bytes([1 << 3 | wire]) for wire in (3, 4, 6, 7)),
        b"\x0a\x05\x00",
        b"\x02\x00",
        b"\x80" * 20,
        b"\x08" + b"\xff" * 10 + b"\x01",
        b"\x0a",
        b"\x09\x00",
        field(1, field(2, b"\x12\x7f")),
        varint(2) + varint(0),
    ],
    ids=lambda data: data.hex(),
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    """Groups, lengths beyond the end, endless numbers and fields without a number are refused."""
    with pytest.raises(MalformedMetrics):
        read_points(data, Everything())


def test_the_number_of_fields_is_bounded() -> None:
    """The number of fields is limited, since a megabyte could have half a million fields of two bytes."""
    assert read_points(field(1, b"") * FIELDS_MAX, WANTED) == []
    with pytest.raises(TooManyFields):
        read_points(field(1, b"") * (FIELDS_MAX + 1), WANTED)
    inner = field(1, field(2, field(2, PushedMetric("a", ((0.5, False),) * 1000).encode())))
    with pytest.raises(TooManyFields):
        read_points(inner, WANTED, 2000)
