"""Random records and batches for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from odradek.wire.batches.records import Header
from odradek.wire.record_batch import RecordBatchBuilder

RecordFields = tuple[int, bytes | None, bytes | None, tuple[Header, ...]]
"""Timestamp, key, value, headers: what a producer gives."""

CODECS = range(5)
BOUND = 1 << 26
"""More than any batch of these tests decompresses to."""

_timestamps = st.integers(0, 1 << 41) | st.integers(1_700_000_000_000, 1_700_000_100_000)
# Sizes around the edges of one- and two-byte varints, and of the builder's table of small ones.
_blobs = st.binary(max_size=40) | st.sampled_from([63, 64, 1023, 1024, 8191, 8192]).map(
    lambda size: b"v" * size
)
_headers = st.lists(st.tuples(st.text(max_size=12), st.none() | st.binary(max_size=12)), max_size=3).map(
    tuple
)

record_fields: st.SearchStrategy[RecordFields] = st.tuples(
    _timestamps, st.none() | _blobs, st.none() | _blobs, st.just(()) | _headers
)
record_lists: st.SearchStrategy[list[RecordFields]] = st.lists(record_fields, min_size=1, max_size=20)


def build_batch(fields: Sequence[RecordFields], compression_type: int = 0, base_offset: int = 0) -> bytearray:
    """One batch of these records."""
    builder = RecordBatchBuilder(base_offset=base_offset, compression_type=compression_type)
    for timestamp, key, value, headers in fields:
        builder.append(timestamp, key, value, headers)
    return builder.build()
