"""A run is a sequence of records of one shape, which is parsed by columns.

The result must equal that of the plain parser.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from odradek.client.consumer.record_runs import Shape
from odradek.wire.batches.batch_header import CRC_START, HEADER_SIZE
from odradek.wire.errors import KafkaError
from tests.client.consumer.test_consumer_records import batch, ours, plain

SIZES = st.sampled_from([-1, 0, 1, 62, 63, 64, 65, 200, 9000])


def rows(count: int, key_size: int, value_size: int, step: int, salt: int = 0) -> list[Any]:
    """Make records of one shape with random contents. Their times grow by `step` every three records."""
    source = random.Random(f"{count}/{key_size}/{value_size}/{salt}")
    return [
        (
            1,
            step * (at // 3),
            None if key_size < 0 else source.randbytes(key_size),
            None if value_size < 0 else source.randbytes(value_size),
            (),
        )
        for at in range(count)
    ]


@given(
    st.integers(1, 200), SIZES, SIZES, st.sampled_from([0, 1, 5, 1000, -1, 1 << 40]), st.sampled_from([0, 1])
)
def test_a_run_is_what_its_records_are(
    count: int, key_size: int, value_size: int, step: int, timestamp_type: int
) -> None:
    """A run is parsed correctly: keys, values and times of every size, and nulls."""
    data = batch(rows(count, key_size, value_size, step), timestamp_type=timestamp_type)
    assert ours(data) == plain(data)


@pytest.mark.long
def test_long_batches_are_a_few_runs() -> None:
    """Long batches are correct beyond 64, 8,192 and 65,536 records, where offset deltas become longer."""
    data = batch(rows(70_000, 2, 3, 0))
    assert ours(data) == plain(data)


@given(st.lists(st.tuples(st.integers(1, 40), SIZES, SIZES), min_size=1, max_size=6), st.integers(1, 3))
def test_runs_one_after_another(parts: list[tuple[int, int, int]], gap: int) -> None:
    """Several runs of different shapes follow each other, with a gap of compaction before each."""
    wanted: list[Any] = []
    for salt, (count, key_size, value_size) in enumerate(parts):
        some = rows(count, key_size, value_size, 1, salt)
        wanted += [(gap, *some[0][1:]), *some[1:]]
    data = batch(wanted)
    assert ours(data) == plain(data)


@given(st.integers(8, 100), st.integers(0, 3), st.integers(0, 3), st.data())
def test_damage_in_a_run_is_seen(count: int, key_size: int, value_size: int, data: st.DataObject) -> None:
    """A byte of a run is changed. The parser agrees with the plain one, or both raise an error."""
    whole = bytearray(batch(rows(count, key_size, value_size, 1)))
    position = data.draw(st.integers(HEADER_SIZE, len(whole) - 1))
    whole[position] = data.draw(st.integers(0, 255))
    whole[17:21] = crc32c(bytes(whole[CRC_START:])).to_bytes(4, "big")
    try:
        expected = plain(bytes(whole))
    except KafkaError as error:
        failure: Any = type(error)
        try:
            found = ours(bytes(whole))
        except KafkaError:
            return
        raise AssertionError(f"expected the error {failure!r}, found {len(found)} records") from error
    assert ours(bytes(whole)) == expected


def test_a_run_is_proved_and_found() -> None:
    """The parser recognizes a run and its whole length. If it missed runs, it would only be slower, unnoticed."""
    data = batch(rows(50, 4, 10, 0))[HEADER_SIZE:]
    shape = Shape.of(data, 0)
    assert shape is not None
    assert shape.run_length(data, 0, 50, 0) == 50
    assert shape.run_length(data, 0, 30, 0) == 30
    assert shape.run_length(data, 0, 50, 1) == 0
