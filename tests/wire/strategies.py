"""Hypothesis strategies for records, batches and messages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from hypothesis import strategies as st

from odradek.wire.batches.records import Header
from odradek.wire.record_batch import RecordBatchBuilder
from odradek.wire.structure import Structure, WireField
from tests.wire.message_values import INTEGERS, contains

RecordFields = tuple[int, bytes | None, bytes | None, tuple[Header, ...]]
"""Timestamp, key, value and headers of a record, as a producer gives them."""

CODECS = range(5)
BOUND = 1 << 26
"""Decompression limit in bytes, larger than any batch of these tests."""

_timestamps = st.integers(0, 1 << 41) | st.integers(1_700_000_000_000, 1_700_000_100_000)
# Sizes near the limits of one- and two-byte varints, and of the builder's table of small sizes.
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
    """Build a batch of these records."""
    builder = RecordBatchBuilder(base_offset=base_offset, compression_type=compression_type)
    for timestamp, key, value, headers in fields:
        builder.append(timestamp, key, value, headers)
    return builder.build()


@cache
def structures(cls: type[Structure], version: int) -> st.SearchStrategy[Any]:
    """Draw structures of a class and version. Each field has few possible values, so that names are often repeated."""
    facts = {attribute.name: attribute.metadata["kafka"] for attribute in cls.__attrs_attrs__}
    return st.builds(
        cls,
        **{name: _field(fact, version) for name, fact in facts.items() if contains(fact.versions, version)},
    )


def _field(fact: WireField, version: int) -> st.SearchStrategy[Any]:
    if isinstance(fact.type, (str, type)):
        values = _value(fact.type, version)
    else:
        values = st.lists(_value(fact.type[0], version), max_size=4)
    return st.none() | values if contains(fact.nullable, version) else values


def _value(kind: str | type[Structure], version: int) -> st.SearchStrategy[Any]:
    if not isinstance(kind, str):
        return structures(kind, version)
    if kind in INTEGERS:
        return st.integers(0, 2)
    if kind == "bool":
        return st.booleans()
    if kind == "float64":
        return st.floats(0, 2)
    if kind == "uuid":
        return st.sampled_from([bytes(16), b"a" * 16, b"b" * 16])
    return st.sampled_from(["", "a", "b"] if kind == "string" else [b"", b"a"])
