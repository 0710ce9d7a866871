"""`record_times` finds the same offsets and timestamps as the record parser, without building records."""

from __future__ import annotations

import tracemalloc

import pytest

from odradek.wire.batches.batch_errors import InvalidRecord
from odradek.wire.batches.compression import CHUNK_BYTES
from odradek.wire.batches.record_times import record_times
from odradek.wire.batches.records import records
from odradek.wire.record_batch import RecordBatchBuilder

MAX = 64 << 20
VALUES = [
    b"",
    b"v" * 63,
    b"w" * 64,
    b"x" * 9_000,
    b"y" * (CHUNK_BYTES - 20),
    b"z" * (3 * CHUNK_BYTES),
    b"end",
]


def batch_of(values: list[bytes], **fields: int) -> bytearray:
    builder = RecordBatchBuilder(base_offset=1_000, **fields)
    for number, value in enumerate(values):
        timestamp = 1_700_000_000_000 + (-1) ** number * number * 100_000
        builder.append(timestamp, b"k" * (number % 50), value, [("h", value[:5])], offset=1_000 + 2 * number)
    return builder.build()


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("timestamp_type", [0, 1])
def test_the_numbers_are_those_of_the_parser(codec: int, timestamp_type: int) -> None:
    """Offsets and timestamps are the same for all codecs, for records that span chunks, and with LogAppendTime."""
    for values in (VALUES, VALUES[::-1], [b"small"] * 9_000):
        batch = batch_of(values, compression_type=codec, timestamp_type=timestamp_type)
        expected = [(each.offset, each.timestamp) for each in records(batch, decompressed_bytes_max=MAX)]
        found = list(record_times(batch, records_max=len(values), decompressed_bytes_max=MAX))
        assert found == expected


def test_the_first_of_many_costs_one_chunk() -> None:
    """Reading only the first record decompresses only one chunk."""
    batch = batch_of([b"v" * (1 << 20)] * 30, compression_type=4)
    tracemalloc.start()
    found = next(record_times(batch, records_max=30, decompressed_bytes_max=MAX))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == (1_000, 1_700_000_000_000)
    assert peak < 4 * CHUNK_BYTES


def test_more_records_than_may_be_gone_through() -> None:
    """A header with more records than allowed is refused before decompression."""
    batch = batch_of([b"v"] * 11, compression_type=4)
    with pytest.raises(InvalidRecord, match="11 records"):
        record_times(batch, records_max=10, decompressed_bytes_max=MAX)
