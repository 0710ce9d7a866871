"""Packed state of producers: packing loses no field, and needs little memory."""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.data_plane.log.parts.producer_entry import (
    BATCHES_KEPT,
    FIELDS,
    Duplicate,
    ProducerEntry,
    find_duplicate,
)
from odradek.data_plane.log.parts.producer_state import ProducerState
from odradek.wire.batches.batch_header import SEQUENCE_MASK
from odradek.wire.batches.transaction_markers import EndMarker

INT64 = st.integers(-1, (1 << 63) - 1)
INT32 = st.integers(0, (1 << 31) - 1)
TIMES_MS = st.integers(-(1 << 63), (1 << 63) - 1)
FAR_OFFSETS = 1 << 32
FAR_MS = 1 << 31
BYTES_MAX = 200


@st.composite
def entries(draw: st.DrawFn) -> ProducerEntry:
    entry = ProducerEntry(draw(st.integers(-1, (1 << 15) - 1)))
    entry.coordinator_epoch = draw(st.integers(-1, (1 << 31) - 1))
    entry.last_timestamp_ms = draw(st.integers(-(1 << 63), (1 << 63) - 1))
    entry.current_txn_first_offset = draw(INT64)
    if entry.current_txn_first_offset < 0:
        entry.silent_since_ms = draw(st.integers(-1, 1 << 50))
    sequence, offset, timestamp_ms = draw(INT32), draw(st.integers(0, 1 << 62)), draw(TIMES_MS)
    has_sequences = draw(st.booleans())
    for _ in range(draw(st.integers(0, BATCHES_KEPT))):
        delta = draw(INT32)
        sequence = (sequence + delta + 1) & SEQUENCE_MASK
        offset += draw(st.integers(1, FAR_OFFSETS - 1))
        timestamp_ms += draw(st.integers(1 - FAR_MS, FAR_MS - 1))
        timestamp_ms = max(-(1 << 63), min((1 << 63) - 1, timestamp_ms))
        entry.batches.extend((sequence if has_sequences else -1, offset, delta, timestamp_ms))
    return entry


def _filled(batches: Iterable[tuple[int, int, int, int]]) -> list[list[int]]:
    """Return the batches that an entry still has after these were added, oldest first."""
    entry = ProducerEntry(0)
    for batch in batches:
        entry.batches.extend(batch)
    known = ProducerEntry.of(entry.packed()).batches
    return [known[at : at + FIELDS].tolist() for at in range(0, len(known), FIELDS)]


@given(entries())
def test_a_packed_entry_has_all_fields(entry: ProducerEntry) -> None:
    """An entry is packed and unpacked. All fields are equal, with extreme values in batches, markers and timestamps."""
    again = ProducerEntry.of(entry.packed())
    assert [getattr(again, name) for name in entry.__slots__] == [
        getattr(entry, name) for name in entry.__slots__
    ]


@given(entries(), st.integers(0, BATCHES_KEPT - 1))
def test_any_kept_batch_is_found_when_it_is_repeated(entry: ProducerEntry, which: int) -> None:
    """A repeated batch is found with its offsets (KIP-98). A batch that follows the newest one is new."""
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


def test_what_is_behind_a_gap_is_forgotten() -> None:
    """After a gap in sequence numbers, or 2^32 offsets later, older batches are forgotten, since no client repeats
    them."""
    first, second, third = (9, 100, 0, 5), (10, 101, 0, 6), (11, 102, 0, 7)
    assert _filled([first, second, third]) == [[*first], [*second], [*third]]
    assert _filled([first, third]) == [[*third]]
    late = (11, 101 + FAR_OFFSETS, 0, 7)
    assert _filled([first, second, late]) == [[*late]]
    last = (11, 101 + FAR_OFFSETS - 1, 0, 7)
    assert _filled([first, second, last]) == [[*first], [*second], [*last]]


def test_a_timestamp_is_as_near_as_there_is_room() -> None:
    """Timestamps too far apart to be packed are stored as near as possible. The batch is still found."""
    first, second = (9, 100, 0, 0), (10, 101, 0, 3 * FAR_MS)
    assert _filled([first, second]) == [[9, 100, 0, 2 * FAR_MS + 1], [*second]]
    assert _filled([second, (11, 102, 0, 0)])[0] == [10, 101, 0, FAR_MS - 1]


@pytest.mark.parametrize("batches", [1, BATCHES_KEPT])
def test_a_producer_takes_little_memory(batches: int) -> None:
    """A producer that has had a transaction in this partition takes at most 200 bytes."""
    producers = 1_000
    tracemalloc.start()
    try:
        state = ProducerState()
        for at in range(producers):
            producer_id, offset = (1 << 20) + at, (1 << 40) + (batches + 1) * at
            for sequence in range(batches):
                state.update(producer_id, 3, sequence, offset + sequence, 0, (1 << 41) + at, True)
            end = offset + batches
            state.end_transaction(producer_id, 3, end, (1 << 41) + at, EndMarker(False, 5))
            state.forget_ended(end + 1)
        assert tracemalloc.get_traced_memory()[0] / producers <= BYTES_MAX
    finally:
        tracemalloc.stop()
    assert len(state.entries) == producers
