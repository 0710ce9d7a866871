"""The hash of rows does not depend on their order or on batches, and other rows have another hash."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="Spark is not installed (the extra spark)")

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.spark.delivery import row_hash, row_hash_before

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LONG = [b"x" * length for length in (255, 256, 511, 512, 513, 1023, 1025, 2000, 2047, 2048, 2049, 5000)]
BYTES = st.one_of(st.none(), st.binary(max_size=20), st.binary(max_size=70), st.sampled_from(LONG))
ROW = st.tuples(
    BYTES,
    BYTES,
    st.one_of(st.none(), st.lists(st.tuples(st.text(max_size=3), BYTES), min_size=1, max_size=3)),
    st.one_of(st.none(), st.integers(0, 9)),
)
MASK = (1 << 64) - 1


def hashed(rows: list[Any], hash_rows: Callable[[list[Any]], int] = row_hash.hash_rows) -> int:
    """Compute the hash of rows (key, value, headers, partition). They come in an Arrow slice, as Spark may pass them."""
    padded = [(b"pad", None, None, 3), *rows]
    headers = [
        None if row[2] is None else [{"key": key, "value": value} for key, value in row[2]] for row in padded
    ]
    columns = [
        pa.array([row[0] for row in padded], pa.binary()),
        pa.array([row[1] for row in padded], pa.binary()),
        pa.array(headers, HEADERS),
        pa.array([row[3] for row in padded], pa.int32()),
    ]
    sliced: list[Any] = [column.slice(1) for column in columns]
    return hash_rows(sliced)


@settings(max_examples=60)
@given(st.lists(ROW, max_size=8), st.randoms(use_true_random=False), st.integers(0, 8))
def test_order_and_batches_play_no_part(rows: list[Any], random: Random, cut: int) -> None:
    """If rows are shuffled into two batches, the sum of the hashes is the hash of all rows."""
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert (hashed(shuffled[:cut]) + hashed(shuffled[cut:])) & MASK == hashed(rows)


@settings(max_examples=60)
@given(st.lists(ROW, min_size=1, max_size=4), ROW)
def test_other_rows_have_another_hash(rows: list[Any], other: Any) -> None:
    """If one row changes, the hash changes, also between null and empty, and if headers change their order."""
    if other != rows[0]:
        assert hashed([other, *rows[1:]]) != hashed(rows)


@pytest.mark.parametrize(
    "length", [*range(1, 20), 31, 32, 33, 127, 128, 255, 256, 511, 512, 1030, 2047, 2048, 5000]
)
def test_each_bit_of_a_value_counts(length: int) -> None:
    """A value with one other bit has another hash, wherever the bit is."""
    plain = bytes(length)
    values = [plain]
    for place in {*range(min(length, 40)), *range(max(0, length - 40), length), length // 2}:
        for bit in (1, 128):
            values.append(plain[:place] + bytes([bit]) + plain[place + 1 :])
    assert len({row_hash.hash_rows([pa.array([value])]) for value in values}) == len(values)


def test_two_changes_do_not_cancel_each_other() -> None:
    """Values that differ in the highest bits of any two words have different hashes."""
    values = [bytes(64)]
    for one in range(7, 64, 8):
        for other in range(one + 8, 64, 8):
            changed = bytearray(64)
            changed[one], changed[other] = 128, 128
            values.append(bytes(changed))
    assert len({row_hash.hash_rows([pa.array([value])]) for value in values}) == len(values)


def test_rows_of_an_earlier_version_keep_their_hash() -> None:
    """The hash that version 0.3 has written for these rows is computed again, so that a batch it has begun can end."""
    rows = [
        (b"k", b"v" * 9, [("h", b"x"), ("h", None)], 2),
        (None, b"y" * 513, None, None),
        (b"", b"", [], 0),
    ]
    assert hashed(rows, row_hash_before.hash_rows) == 0xF73E15C1097AF7C0
