"""Rows of several small ranges at once: `decode_ranges` gives the same rows as `decode_batches` for each range."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.record_batch import RecordBatchBuilder
from tests.schedule import examples
from tests.spark.reading.test_decode import BatchPlan, batch_plans, build
from tests.wire.strategies import BOUND

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'odradek[spark]'")
from odradek.spark.decode import FetchedRange, decode_batches, decode_ranges  # noqa: E402  # needs pyarrow


def rows_of(batches: list[Any]) -> list[dict[str, Any]]:
    """Return the rows of Arrow batches, with times as numbers, because Python's datetime covers fewer years."""
    rows: list[dict[str, Any]] = []
    for batch in batches:
        batch.validate(full=True)
        times = batch.column("timestamp").cast(pa.int64())
        rows += batch.set_column(5, "timestamp", times).to_pylist()
    return rows


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(batch_plans, min_size=1, max_size=4), st.booleans(), st.data())
def test_same_rows(plans: list[list[BatchPlan]], with_headers: bool, data: st.DataObject) -> None:
    """For any batches and number of wanted rows, `decode_ranges` gives the rows of `decode_batches`, range by range."""
    ranges = []
    for number, plan in enumerate(plans):
        offset = data.draw(st.integers(0, 60), "start")
        end = offset + data.draw(st.integers(0, 300), "length")
        records = bytes(b"".join(build(plan, 5)))
        ranges.append(FetchedRange(records, f"topic-{number % 2}", number, offset, end))
    expected = []
    for each in ranges:
        pieces = decode_batches(
            each.records,
            topic=each.topic,
            partition=each.partition,
            offset=each.offset,
            offset_end=each.offset_end,
            decompressed_bytes_max=BOUND,
            with_headers=with_headers,
        )
        expected += [piece.rows for piece in pieces]
    rows_wanted = data.draw(st.sampled_from([1, 10, 10_000]), "rows wanted")
    found = decode_ranges(
        ranges, decompressed_bytes_max=BOUND, with_headers=with_headers, rows_wanted=rows_wanted
    )
    assert rows_of(list(found)) == rows_of(expected)


def batch(base_offset: int, producer_id: int, value: bytes | None) -> bytearray:
    """Make a batch of one transactional record, or the abort marker if the value is None."""
    builder = RecordBatchBuilder(
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        is_transactional=True,
        is_control=value is None,
    )
    builder.append(1, b"\0\0\0\0" if value is None else None, value or b"\0\0\0\0\0\0")
    return builder.build()


def test_aborted_transactions_of_each_range() -> None:
    """An aborted transaction in one range does not hide records of another with the same producer id and offsets."""
    log = bytes(batch(0, 7, b"lost") + batch(1, 7, None) + batch(2, 7, b"kept"))
    ranges = [
        FetchedRange(log, "t", 0, 0, 3, aborted=[(0, 7)]),
        FetchedRange(log, "t", 1, 0, 3),
    ]
    [rows] = decode_ranges(ranges, decompressed_bytes_max=BOUND)
    found = zip(rows.column("partition").to_pylist(), rows.column("value").to_pylist(), strict=True)
    assert list(found) == [(0, b"kept"), (1, b"lost"), (1, b"kept")]


def test_damage_in_one_range() -> None:
    """A damaged batch in any range makes the whole call fail."""
    damaged = batch(0, 7, b"value")
    damaged[-1] ^= 1
    ranges = [
        FetchedRange(bytes(batch(0, 7, b"value")), "t", 0, 0, 1),
        FetchedRange(bytes(damaged), "t", 1, 0, 1),
    ]
    with pytest.raises(CorruptBatch):
        list(decode_ranges(ranges, decompressed_bytes_max=BOUND))
