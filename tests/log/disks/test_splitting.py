"""Old segments whose offsets are too far apart for an index. They are split when their log is opened."""

from __future__ import annotations

import pytest

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import Origin, PartitionLog
from odradek.data_plane.log.segments.aborted_index import AbortedIndex, AbortedTransaction
from odradek.data_plane.log.segments.file_names import file_name
from odradek.data_plane.log.segments.segment import RELATIVE_OFFSET_MAX
from odradek.env.ports import Dir
from sim.machine.disk import Keep, SimDisk
from sim.machine.disk_files import PowerCut
from testkit.by_hand import NOW_MS
from tests.log.support import ROOT, append, batch, content, new_disk, open_log

FAR = (10, 13, (1 << 31) + 100, (1 << 32) + 5)
END = FAR[-1] + 3
CONFIG = LogConfig(index_interval_bytes=1)


def written(disk: SimDisk, offsets: tuple[int, ...] = FAR, *, base_offset: int = 10) -> tuple[Dir, bytes]:
    """Make a directory with one segment of these batches, as an old version of Kafka writes it.

    Return the bytes, too.
    """
    directory = disk.open_dir(ROOT, create=True)
    data = b"".join(
        bytes(batch(3, timestamp=NOW_MS - 1000 + 10 * at, base_offset=offset, leader_epoch=0))
        for at, offset in enumerate(offsets)
    )
    file = directory.open(file_name(base_offset, ".log"), create=True)
    file.append(data)
    file.sync()
    file.close()
    directory.sync()
    return directory, data


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


@pytest.mark.parametrize("clean", [True, False])
def test_a_segment_that_reaches_too_far_is_split(clean: bool) -> None:
    """A segment is split.

    Offsets, batches and timestamps stay as they are, and each piece is within an index's range.
    """
    directory, data = written(new_disk())
    log = open_log(directory, CONFIG, clean=clean, recovery_point=END)
    assert bases(log) == [10, FAR[2]]
    assert (log.log_start_offset, log.log_end_offset) == (10, END)
    assert content(log) == data
    log.advance_high_watermark(END)
    for at, offset in enumerate(FAR):
        timestamp = NOW_MS - 1000 + 10 * at
        assert log.times().offset_for_timestamp(timestamp, upper_bound=END) == (timestamp, offset, 0)
    assert append(log, batch(2)).base_offset == END
    log.roll(NOW_MS)
    for segment in log.segments:
        assert all(0 <= each <= RELATIVE_OFFSET_MAX for each in segment.load_index(1).offsets)
    log.close()
    again = open_log(directory, CONFIG)
    assert (bases(again), again.log_end_offset) == ([10, FAR[2], END + 2], END + 2)


def test_a_finished_segment_is_split_as_well() -> None:
    """A finished segment is split. The next segment does not change."""
    disk = new_disk()
    directory, data = written(disk)
    file = directory.open(file_name(END, ".log"), create=True)
    more = bytes(batch(2, base_offset=END, leader_epoch=0))
    file.append(more)
    log = open_log(directory, CONFIG)
    assert bases(log) == [10, FAR[2], END]
    assert content(log) == data + more


def test_each_piece_has_the_aborted_transactions_that_end_in_it() -> None:
    """Each piece has the index entries of the aborted transactions that end in it.

    Otherwise committed readers would see their records.
    """
    directory, _ = written(new_disk())
    entries = [AbortedTransaction(7, 10, 15, 16), AbortedTransaction(8, 13, FAR[3], FAR[3] + 1)]
    index = AbortedIndex()
    for entry in entries:
        index.append(entry)
    file = directory.open(file_name(10, ".txnindex"), create=True)
    file.append(index.encode())
    log = open_log(directory, CONFIG)
    files = [segment.aborted for segment in log.segments]
    assert [list(file.load()) for file in files if file is not None] == [[entries[0]], [entries[1]]]
    assert log.aborted_transactions(10, END) == entries


def test_a_damaged_segment_stays_whole() -> None:
    """A damaged segment stays whole, so that intact data is never replaced by damage.

    The log is read up to the damage.
    """
    disk = new_disk()
    directory, data = written(disk)
    disk.corrupt(f"{ROOT}/{file_name(10, '.log')}", len(data) // 4 + 80)
    log = open_log(directory, CONFIG)
    assert bases(log) == [10]
    assert log.log_end_offset == END


def test_an_offset_out_of_reach_is_damage_where_nothing_was_synced() -> None:
    """Above the recovery point, an offset out of range is damage, since no checksum covers base offsets."""
    directory, data = written(new_disk())
    log = open_log(directory, CONFIG, clean=False, recovery_point=14)
    assert (bases(log), log.log_end_offset) == ([10], 16)
    assert content(log) == data[: len(data) // 2]


@pytest.mark.parametrize("keep", ["synced", "all", "random"])
def test_a_split_survives_a_loss_of_power_at_each_operation(keep: Keep) -> None:
    """The power is cut at each operation of a split.

    The next start undoes or finishes it, and each record is there once.
    """
    number = 0
    while True:
        number += 1
        disk = new_disk(number)
        directory, data = written(disk)
        disk.crash_at(disk.operation_count + number)
        try:
            open_log(directory, CONFIG, clean=False, recovery_point=END)
        except PowerCut:
            pass
        else:
            break
        disk.crash(keep)
        log = open_log(disk.open_dir(ROOT), CONFIG, clean=False, recovery_point=END)
        assert content(log) == data, f"the contents differ after a power loss at operation {number}"
        assert bases(log) == [10, FAR[2]]
        assert not [name for name in log.directory.list() if not name[:20].isdigit() or name.count(".") > 1]
    assert number > 20


def test_a_replicas_gap_is_no_reason_to_split() -> None:
    """A replica's next segment begins far above the last one.

    Each segment is within its index's range, so none is split.
    """
    log = open_log(new_disk().open_dir(ROOT, create=True), CONFIG)
    for offset in (0, 1 << 33):
        log.append(memoryview(batch(base_offset=offset, leader_epoch=0)), Origin.REPLICA, 0, NOW_MS)
    log.close()
    assert bases(log) == bases(open_log(log.directory, CONFIG)) == [0, 1, 1 << 33]
