"""Packed producers: nothing is lost in packing, and they take little memory."""

from __future__ import annotations

import tracemalloc
from array import array

from hypothesis import given
from hypothesis import strategies as st

from data_plane.log.parts.producer_entry import (
    BATCHES_KEPT,
    FIELDS,
    Duplicate,
    ProducerEntry,
    find_duplicate,
)
from data_plane.log.parts.producer_state import ProducerState
from wire.batches.batch_header import SEQUENCE_MASK
from wire.batches.transaction_markers import EndMarker

INT64 = st.integers(-1, (1 << 63) - 1)
INT32 = st.integers(0, (1 << 31) - 1)
BATCH = st.tuples(st.integers(-1, (1 << 31) - 1), INT64, INT32, st.integers(-(1 << 63), (1 << 63) - 1))
BYTES_MAX = 200


@st.composite
def entries(draw: st.DrawFn) -> ProducerEntry:
    entry = ProducerEntry(draw(st.integers(-1, (1 << 15) - 1)))
    entry.coordinator_epoch = draw(st.integers(-1, (1 << 31) - 1))
    entry.last_timestamp_ms = draw(st.integers(-(1 << 63), (1 << 63) - 1))
    entry.current_txn_first_offset = draw(INT64)
    if entry.current_txn_first_offset < 0:
        entry.silent_since_ms = draw(st.integers(-1, 1 << 50))
    for fields in draw(st.lists(BATCH, max_size=BATCHES_KEPT)):
        entry.batches.extend(fields)
    return entry


@given(entries())
def test_a_packed_entry_has_all_fields(entry: ProducerEntry) -> None:
    """Each field has room for all values that a batch's header, a marker and a clock can have."""
    again = ProducerEntry.of(entry.packed())
    assert [getattr(again, name) for name in entry.__slots__] == [
        getattr(entry, name) for name in entry.__slots__
    ]


@given(entries(), st.integers(0, BATCHES_KEPT - 1))
def test_any_kept_batch_is_found_when_it_is_repeated(entry: ProducerEntry, which: int) -> None:
    """A batch that comes again is answered with the offsets that it has (KIP-98); one that follows the newest is new."""
    packed = entry.packed()
    fields = entry.batches[which * FIELDS : (which + 1) * FIELDS]
    if not fields:
        return
    sequence, last_offset, delta, timestamp_ms = fields
    base_sequence = (sequence - delta) & SEQUENCE_MASK
    found = find_duplicate(packed, entry.epoch, base_sequence, sequence)
    if base_sequence == (entry.last_sequence + 1) & SEQUENCE_MASK:
        assert found is None
    elif array("q", entry.batches[::FIELDS]).count(sequence) == 1:
        assert found == Duplicate(last_offset - delta, last_offset, timestamp_ms)
    assert find_duplicate(packed, entry.epoch + 1, base_sequence, sequence) is None


def test_a_producer_takes_little_memory() -> None:
    """At most 200 bytes for a producer that has had a transaction in this partition, with its place among the others."""
    producers = 1_000
    tracemalloc.start()
    try:
        state = ProducerState()
        for at in range(producers):
            producer_id, offset = (1 << 20) + at, (1 << 40) + 2 * at
            state.update(producer_id, 3, 0, offset, 0, (1 << 41) + at, True)
            state.end_transaction(producer_id, 3, offset + 1, (1 << 41) + at, EndMarker(False, 5))
            state.forget_ended(offset + 2)
        assert tracemalloc.get_traced_memory()[0] / producers <= BYTES_MAX
    finally:
        tracemalloc.stop()
    assert len(state.entries) == producers
