"""The checks of idempotent producers' sequence numbers and epochs, in tables of cases, and snapshots of producers."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.data_plane.log.partition_log import Origin
from odradek.data_plane.log.parts.producer_entry import BATCHES_KEPT
from odradek.data_plane.log.parts.producer_state import DamagedSnapshot, ProducerState
from odradek.data_plane.log.segments.file_names import file_name
from odradek.wire.batches.transaction_markers import EndMarker, build_marker
from odradek.wire.errors import ErrorCode, KafkaError
from testkit.by_hand import NOW_MS
from tests.log.support import ROOT, append, append_verified, batch, new_disk, new_log, open_log, retain

LAST_SEQUENCE = 0x7FFFFFFF


def state_with(*batches: tuple[int, int, int]) -> ProducerState:
    """Make the state after producer 1 has appended these batches (epoch, base sequence, record count) from offset 0."""
    state = ProducerState()
    offset = 0
    for epoch, sequence, count in batches:
        state.update(1, epoch, sequence, offset + count - 1, count - 1, NOW_MS, False)
        offset += count
    return state


ACCEPTED = [
    ("the first batch of an unknown producer starts at 0", [], (0, 0, 5)),
    ("... or anywhere: its state may have expired", [], (3, 77, 5)),
    ("the next batch follows without a gap", [(0, 0, 5)], (0, 5, 5)),
    ("a new epoch starts at 0", [(0, 0, 5)], (1, 0, 5)),
    ("sequences wrap to 0 behind the last one", [(0, LAST_SEQUENCE, 1)], (0, 0, 3)),
    ("a batch may wrap within", [(0, LAST_SEQUENCE - 4, 3)], (0, LAST_SEQUENCE - 1, 5)),
    ("... and the next one follows it", [(0, LAST_SEQUENCE - 1, 5)], (0, 3, 1)),
]

REFUSED = [
    ("a gap", [(0, 0, 5)], (0, 6, 5), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (
        "a step back that repeats no batch",
        [(0, 0, 5), (0, 5, 5)],
        (0, 1, 5),
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ),
    ("a repetition of another length", [(0, 0, 5)], (0, 0, 4), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ("a new epoch that does not start at 0", [(0, 0, 5)], (1, 5, 5), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ("an epoch that has been replaced", [(4, 0, 5)], (3, 5, 5), ErrorCode.INVALID_PRODUCER_EPOCH),
    ("... even at 0", [(4, 0, 5)], (3, 0, 5), ErrorCode.INVALID_PRODUCER_EPOCH),
    (
        "a batch older than the last five",
        [(0, at, 1) for at in range(BATCHES_KEPT + 1)],
        (0, 0, 1),
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ),
    (
        "no wrap before the last sequence",
        [(0, LAST_SEQUENCE - 1, 1)],
        (0, 0, 1),
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ),
]


@pytest.mark.parametrize(
    ("before", "new"), [case[1:] for case in ACCEPTED], ids=[case[0] for case in ACCEPTED]
)
def test_what_follows_is_accepted(before: list[tuple[int, int, int]], new: tuple[int, int, int]) -> None:
    """A batch is accepted if its sequence numbers follow without a gap, or begin at 0 in a new epoch."""
    epoch, sequence, count = new
    assert state_with(*before).check(1, epoch, sequence, count - 1) is None


@pytest.mark.parametrize(
    ("before", "new", "code"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_what_does_not_follow_is_refused(
    before: list[tuple[int, int, int]], new: tuple[int, int, int], code: ErrorCode
) -> None:
    """A batch whose sequence number or epoch does not follow is refused with Kafka's error code."""
    epoch, sequence, count = new
    with pytest.raises(KafkaError) as caught:
        state_with(*before).check(1, epoch, sequence, count - 1)
    assert caught.value.code == code


def test_the_last_five_batches_are_recognised() -> None:
    """A repetition of one of a producer's last five batches is found with its offsets."""
    state = state_with(*((0, at * 3, 3) for at in range(9)))
    for at in range(9 - BATCHES_KEPT, 9):
        found = state.check(1, 0, at * 3, 2)
        assert found is not None
        assert (found.base_offset, found.last_offset, found.timestamp_ms) == (at * 3, at * 3 + 2, NOW_MS)


def test_a_repetition_across_the_wrap_is_recognised() -> None:
    """A repeated batch is found even if its sequence numbers wrap around."""
    state = state_with((0, LAST_SEQUENCE - 1, 5))
    found = state.check(1, 0, LAST_SEQUENCE - 1, 4)
    assert found is not None
    assert found.last_offset == 4


def test_a_log_answers_repetitions_and_appends_nothing() -> None:
    """A duplicate is answered with the offsets of the first append, and nothing is appended."""
    log = new_log()
    first = append(log, batch(3, producer_id=1, producer_epoch=0, base_sequence=0))
    append(log, batch(3, producer_id=1, producer_epoch=0, base_sequence=3))
    again = append(log, batch(3, producer_id=1, producer_epoch=0, base_sequence=0))
    assert again.duplicate
    assert (again.base_offset, again.last_offset) == (first.base_offset, first.last_offset)
    assert again.log_append_time_ms == NOW_MS + 2
    assert log.log_end_offset == 6


def marker(producer_id: int, epoch: int, coordinator_epoch: int) -> bytearray:
    """Make a transaction marker as a coordinator writes it."""
    return build_marker(producer_id, epoch, coordinator_epoch, is_commit=True, timestamp_ms=NOW_MS)


def test_transactions_are_tracked_by_their_first_offset_and_markers() -> None:
    """DescribeProducers shows the first offset of an open transaction, and the coordinator's epoch."""
    disk = new_disk()
    directory = disk.open_dir(ROOT, create=True)
    log = open_log(directory)
    append(log, batch(2))
    ids = {"producer_id": 1, "producer_epoch": 3, "is_transactional": True}
    append_verified(log, batch(2, base_sequence=0, **ids))
    append_verified(log, batch(2, base_sequence=2, **ids))
    (producer,) = log.load_producers().active_producers()
    assert (producer.current_txn_start_offset, producer.last_sequence) == (2, 3)
    append(log, marker(1, 3, 7), origin=Origin.COORDINATOR)
    (producer,) = log.load_producers().active_producers()
    assert (producer.current_txn_start_offset, producer.coordinator_epoch, producer.last_sequence) == (
        -1,
        7,
        3,
    )
    for clean in (False, True):
        log.close()
        log = open_log(directory, clean=clean)
        assert list(log.load_producers().active_producers()) == [producer]


def test_a_marker_of_a_new_epoch_fences_the_old_one() -> None:
    """A marker with a new producer epoch fences the old epoch (KIP-360)."""
    state = state_with((3, 0, 5))
    state.end_transaction(1, 4, 9, NOW_MS, EndMarker(False, 0))
    with pytest.raises(KafkaError) as caught:
        state.check(1, 3, 5, 0)
    assert caught.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert state.check(1, 4, 0, 0) is None


def test_a_first_marker_has_no_coordinator_epoch_below_that_of_none() -> None:
    """The first marker of a producer has a coordinator epoch below -1.

    It is refused, as by Kafka's `checkCoordinatorEpoch`.
    """
    state = state_with((3, 0, 5))
    unknown = 77
    for coordinator_epoch in (-(1 << 31), -2):
        with pytest.raises(KafkaError) as caught:
            state.check_marker(unknown, 0, coordinator_epoch, 1)
        assert caught.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    state.check_marker(unknown, 0, -1, 1)


def test_silent_producers_expire() -> None:
    """A producer that is silent for `producer.id.expiration.ms` is forgotten, unless it has an open transaction."""
    state = state_with((0, 0, 1))
    state.update(2, 0, 0, 9, 0, NOW_MS, True)
    assert [state.expire(now_ms, 100) for now_ms in (5, 104, 105)] == [0, 0, 1]
    assert list(state.entries) == [2]


def test_a_producer_at_work_never_expires() -> None:
    """Expiry goes by the time of appends, and not by timestamps of batches, which may be an hour off (seed 70088)."""
    state = state_with((0, 0, 1))
    for sequence in range(1, 10):
        assert state.expire(1000 * sequence, 1000) == 0
        state.update(1, 0, sequence, sequence, 0, NOW_MS - 3_600_000, False)
    assert [state.expire(now_ms, 1000) for now_ms in (10_000, 10_999, 11_000)] == [0, 0, 1]


producers = st.dictionaries(
    st.integers(0, 1 << 62),
    st.tuples(st.integers(0, 32767), st.integers(0, LAST_SEQUENCE), st.integers(0, 100), st.booleans()),
    max_size=5,
)


@given(producers)
def test_a_snapshot_keeps_each_producers_last_batch(found: dict[int, tuple[int, int, int, bool]]) -> None:
    """Each producer's last batch is in a snapshot, and is read back."""
    state = ProducerState()
    for producer_id, (epoch, sequence, delta, transactional) in found.items():
        state.update(producer_id, epoch, sequence, delta + 5, delta, NOW_MS, transactional)
    again = ProducerState.decode(state.encode())
    assert list(again.active_producers()) == list(state.active_producers())
    assert again.encode() == state.encode()


def test_a_snapshot_keeps_the_last_five_batches() -> None:
    """A snapshot has each producer's last five batches, so a repetition is found after a restart, too.

    Kafka reads only the last entry of each producer, which is the entry that Kafka itself would have written.
    """
    state = ProducerState()
    for at in range(7):
        state.update(1, 0, at * 10, at * 10 + 109, 9, NOW_MS + at, False)
    state.update(2, 4, 0, 200, 0, NOW_MS, False)
    data = state.encode()
    again = ProducerState.decode(data)
    for at in range(2, 7):
        assert again.check(1, 0, at * 10, 9) == (at * 10 + 100, at * 10 + 109, NOW_MS + at)
    with pytest.raises(KafkaError):
        again.check(1, 0, 10, 9)
    assert again.check(1, 0, 70, 9) is None
    assert again.encode() == data
    entries = [struct.unpack_from(">qhiqiqiq", data, at) for at in range(10, len(data), 46)]
    assert [entry[:2] for entry in entries] == [(1, 0)] * 5 + [(2, 4)]
    assert entries[4][2:6] == (69, 169, 9, NOW_MS + 6)


def test_a_damaged_snapshot_is_refused() -> None:
    """A snapshot with any flipped bit, or cut at any byte, is refused."""
    data = state_with((0, 0, 5)).encode()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(DamagedSnapshot):
            ProducerState.decode(bytes(damaged))
        with pytest.raises(DamagedSnapshot):
            ProducerState.decode(data[:at])


def test_snapshots_are_taken_at_every_roll_and_go_with_their_segments() -> None:
    """`<base offset>.snapshot` has the producers at the start of the segment with this base offset. It is removed with
    the segment."""
    log = new_log()
    for at in range(3):
        append(log, batch(2, producer_id=1, producer_epoch=0, base_sequence=2 * at))
        log.roll(NOW_MS)
    for base in (2, 4, 6):
        state = ProducerState.decode(log.directory.read_bytes(file_name(base, ".snapshot")))
        assert state.entries[1].last_offset == base - 1
    log.advance_high_watermark(6)
    log.set_log_start_offset(5)
    retain(log, NOW_MS)
    assert [name for name in log.directory.list() if name.endswith(".snapshot")] == [
        file_name(4, ".snapshot"),
        file_name(6, ".snapshot"),
    ]
