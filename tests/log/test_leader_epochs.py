"""Leader epochs: the rules of KIP-101 and KIP-320, and the checkpoint file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.data_plane.log.parts.leader_epochs import FILE_NAME, LeaderEpochs, MalformedCheckpoint
from tests.log.support import append, batch, fill, new_log

EPOCHS = ((1, 0), (3, 10), (6, 25))


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-1, (-1, -1)),
        (0, (0, 0)),
        (1, (1, 10)),
        (2, (1, 10)),
        (3, (3, 25)),
        (5, (3, 25)),
        (6, (6, 40)),
        (7, (-1, -1)),
    ],
)
def test_an_epoch_ends_where_the_next_one_starts(asked: int, answer: tuple[int, int]) -> None:
    """A request about an epoch gets the greatest known epoch that is not above it, and the end offset of that epoch
    (KIP-320).

    For an epoch above all known ones the answer is undefined.
    """
    assert LeaderEpochs(EPOCHS).end_offset_for(asked, 40) == answer


def test_without_epochs_nothing_is_known() -> None:
    """A log that never had a leader answers -1 for the end of an epoch, and None for the epoch of an offset."""
    assert LeaderEpochs().end_offset_for(0, 5) == (-1, -1)
    assert LeaderEpochs().epoch_for_offset(0) is None


@pytest.mark.parametrize(("offset", "epoch"), [(0, 1), (9, 1), (10, 3), (24, 3), (25, 6), (99, 6)])
def test_an_offset_belongs_to_the_last_epoch_that_started_before_it(offset: int, epoch: int) -> None:
    """An offset belongs to the last epoch that starts at or below it."""
    assert LeaderEpochs(EPOCHS).epoch_for_offset(offset) == epoch
    assert LeaderEpochs(EPOCHS[1:]).epoch_for_offset(9) is None


@pytest.mark.parametrize(
    ("epoch", "start", "expected"),
    [
        (6, 30, EPOCHS),
        (7, 30, (*EPOCHS, (7, 30))),
        (7, 25, (*EPOCHS[:2], (7, 25))),
        (7, 12, (*EPOCHS[:2], (7, 12))),
        (3, 25, EPOCHS[:2]),
        (2, 25, ((1, 0), (2, 25))),
        (-1, 30, EPOCHS),
    ],
)
def test_a_new_epoch_drops_what_contradicts_it(
    epoch: int, start: int, expected: tuple[tuple[int, int], ...]
) -> None:
    """Assigning an epoch drops entries that contradict it. Epochs and start offsets then ascend."""
    epochs = LeaderEpochs(EPOCHS)
    epochs.assign(epoch, start)
    assert epochs.entries == expected
    assert epochs.latest == expected[-1][0]
    assert epochs.is_dirty == (expected != EPOCHS)


def test_truncation_forgets_epochs_at_both_ends() -> None:
    """A truncation at the end drops later epochs. After a truncation at the start, the first remaining epoch begins at
    the new start."""
    epochs = LeaderEpochs(EPOCHS)
    epochs.truncate_from_end(25)
    assert epochs.entries == EPOCHS[:2]
    epochs.truncate_from_start(12)
    assert epochs.entries == ((3, 12),)
    epochs.truncate_from_start(5)
    assert epochs.entries == ((3, 12),)
    epochs.clear()
    assert (epochs.entries, epochs.latest) == ((), -1)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 50)), max_size=12))
def test_entries_always_ascend(assigned: list[tuple[int, int]]) -> None:
    """After any assignments, the entries ascend and can be written and read again."""
    epochs = LeaderEpochs()
    for epoch, start in assigned:
        epochs.assign(epoch, start)
        assert epochs.epoch_for_offset(start) == epoch
    entries = epochs.entries
    assert list(entries) == sorted(entries)
    assert len({epoch for epoch, _ in entries}) == len({start for _, start in entries}) == len(entries)
    assert LeaderEpochs.decode(epochs.encode()).entries == entries


def test_the_file_is_kafkas() -> None:
    """The file has Kafka's format: version 0, the number of entries, and a line for each entry."""
    assert LeaderEpochs(EPOCHS).encode() == b"0\n3\n1 0\n3 10\n6 25\n"
    assert LeaderEpochs.decode(b"").entries == ()


@pytest.mark.parametrize(
    "data", [b"1\n0\n", b"0\n2\n1 0\n", b"0\n1\n1\n", b"0\n1\nx 0\n", b"0\n2\n3 0\n1 5\n", b"\xff", b"0"]
)
def test_another_text_is_refused(data: bytes) -> None:
    """A malformed checkpoint file is refused."""
    with pytest.raises(MalformedCheckpoint):
        LeaderEpochs.decode(data)


def test_a_log_knows_its_epochs_from_its_leaders() -> None:
    """A leader's epoch begins at the end of the log, with or without records."""
    log = new_log()
    fill(log, 2)
    append(log, batch(), epoch=4)
    log.assign_epoch(6)
    log.assign_epoch(5)
    assert log.epochs.entries == ((0, 0), (4, 2), (6, 3))
    assert log.end_offset_for_epoch(5) == (4, 3)
    assert log.epochs.epoch_for_offset(2) == 4


def test_the_epochs_of_a_log_without_records_are_not_written() -> None:
    """The leader epochs of an empty log are in memory only. They are written to the file with its first record."""
    log = new_log()
    for epoch in (1, 2):
        log.assign_epoch(epoch)
        log.flush()
        assert not log.directory.exists(FILE_NAME)
    append(log, batch(), epoch=2)
    log.flush()
    assert LeaderEpochs.decode(log.directory.read_bytes(FILE_NAME)).entries == log.epochs.entries


@pytest.mark.reaches("log.epoch_of_deleted_records")
def test_the_epoch_of_the_last_record() -> None:
    """An epoch counts only if it has records. The epoch of the last record stays known when all are deleted."""
    log = new_log()
    log.assign_epoch(1)
    assert log.epochs.last_written(log.log_end_offset) == -1
    append(log, batch(2), epoch=3)
    log.assign_epoch(6)
    assert log.epochs.last_written(log.log_end_offset) == 3
    log.advance_high_watermark(2)
    log.set_log_start_offset(2)
    assert log.epochs.last_written(log.log_end_offset) == 6, "the later epoch has taken its place"


def test_deleted_records_count_for_an_unclean_recovery() -> None:
    """A log whose records are all deleted is newer than a log of an earlier epoch."""
    log = new_log()
    append(log, batch(2), epoch=3)
    log.advance_high_watermark(2)
    log.set_log_start_offset(2)
    assert log.epochs.last_written(log.log_end_offset) == 3
