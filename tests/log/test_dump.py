"""`odradek log dump`: all kinds of files, and the damage that verification finds."""

from __future__ import annotations

import pytest

from odradek.data_plane.log.dump import dump_segment, verify_partition
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import Origin, PartitionLog
from odradek.data_plane.log.segments.file_names import file_name
from odradek.data_plane.log.segments.small_files import truncate_file
from odradek.wire.batches.transaction_markers import build_marker
from sim.machine.disk import SimDisk
from testkit.by_hand import NOW_MS
from tests.log.support import ROOT, append, append_verified, batch, fill, new_disk, open_log


def closed_log() -> tuple[SimDisk, PartitionLog]:
    disk = new_disk()
    log = open_log(disk.open_dir(ROOT, create=True), LogConfig(index_interval_bytes=100))
    for at in range(6):
        append(
            log,
            batch(2, timestamp=NOW_MS + at, producer_id=1, producer_epoch=0, base_sequence=2 * at),
            epoch=at // 4,
        )
    log.close()
    return disk, log


def test_batches_and_records_are_listed() -> None:
    """Batches are listed by their headers, and their records on request."""
    _, log = closed_log()
    items = list(dump_segment(log.directory, file_name(0, ".log"), with_records=True))
    assert [item["kind"] for item in items] == ["batch", "record", "record"] * 6
    assert [item["base_offset"] for item in items if item["kind"] == "batch"] == list(range(0, 12, 2))
    assert [item["offset"] for item in items if item["kind"] == "record"] == list(range(12))
    first = items[0]
    assert (first["position"], first["producer_id"], first["compression"]) == (0, 1, "none")
    assert (items[1]["key"], items[1]["timestamp"]) == (b"k0", NOW_MS)


def test_the_other_files_are_listed() -> None:
    """Indexes, producer snapshots and leader epochs are listed."""
    _, log = closed_log()
    size = len(batch(2, producer_id=1, producer_epoch=0, base_sequence=0))
    index = list(dump_segment(log.directory, file_name(0, ".index")))
    assert [(item["offset"], item["position"]) for item in index] == [
        (2 * at + 1, at * size) for at in range(1, 6)
    ]
    times = list(dump_segment(log.directory, file_name(0, ".timeindex")))
    assert [(item["timestamp"], item["offset"]) for item in times] == [
        (NOW_MS + at + 1, 2 * at + 1) for at in range(1, 6)
    ]
    (producer,) = dump_segment(log.directory, file_name(12, ".snapshot"))
    assert (producer["producer_id"], producer["last_sequence"]) == (1, 11)
    epochs = list(dump_segment(log.directory, "leader-epoch-checkpoint"))
    assert [(item["epoch"], item["start_offset"]) for item in epochs] == [(0, 0), (1, 8)]
    with pytest.raises(ValueError, match="notes"):
        list(dump_segment(log.directory, "notes.txt"))


def test_a_sound_directory_has_no_damage() -> None:
    """Verification finds no damage in an intact directory.

    Its log may be open, with indexes that are still in memory.
    """
    _, log = closed_log()
    assert list(verify_partition(log.directory)) == []
    log = open_log(log.directory, clean=True)
    fill(log, 3)
    assert list(verify_partition(log.directory)) == []


def test_each_damage_is_named_with_its_place() -> None:
    """Each damaged file is reported with the place.

    Verification continues after a batch with a wrong checksum, and checks indexes against batches.
    """
    size = len(batch(2, producer_id=1, producer_epoch=0, base_sequence=0))
    found = {}
    for name, position in (
        (file_name(0, ".log"), size + 70),
        (file_name(0, ".log"), 3 * size + 16),
        (file_name(0, ".index"), 3),
        (file_name(0, ".index"), 15),
        (file_name(0, ".timeindex"), 7),
        (file_name(12, ".snapshot"), 12),
        ("leader-epoch-checkpoint", 0),
    ):
        disk, log = closed_log()
        disk.corrupt(f"{ROOT}/{name}", position, 0x10)
        damage = list(verify_partition(log.directory))
        assert damage, (name, position)
        found[name, position] = damage[0]
    first = found[file_name(0, ".log"), size + 70]
    assert (first["file"], first["position"], first["reason"]) == (
        file_name(0, ".log"),
        size,
        "the batch's checksum is wrong",
    )
    assert found[file_name(0, ".log"), 3 * size + 16]["position"] == 3 * size
    assert "points at no batch with this offset" in found[file_name(0, ".index"), 15]["reason"]


def test_two_damaged_batches_are_both_found() -> None:
    """Two batches have wrong checksums. Both are reported."""
    disk, log = closed_log()
    size = len(batch(2, producer_id=1, producer_epoch=0, base_sequence=0))
    for at in (1, 4):
        disk.corrupt(f"{ROOT}/{file_name(0, '.log')}", at * size + 80)
    damage = list(dump_segment(log.directory, file_name(0, ".log"), verify=True))
    assert [item["position"] for item in damage if item["kind"] == "damage"] == [size, 4 * size]
    assert len([item for item in damage if item["kind"] == "batch"]) == 4


def test_aborted_transactions_are_listed_and_their_damage_found() -> None:
    """The entries of a `.txnindex` file are listed, one for each abort marker. A cut file is reported as damaged."""
    disk = new_disk()
    log = open_log(disk.open_dir(ROOT, create=True))
    append_verified(log, batch(2, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True))
    end = build_marker(5, 0, 1, is_commit=False, timestamp_ms=NOW_MS)
    append(log, end, origin=Origin.COORDINATOR)
    log.close()
    name = file_name(0, ".txnindex")
    (item,) = dump_segment(log.directory, name)
    assert item == {
        "kind": "aborted_transaction",
        "producer_id": 5,
        "first_offset": 0,
        "last_offset": 2,
        "last_stable_offset": 3,
    }
    assert list(verify_partition(log.directory)) == []
    truncate_file(log.directory, name, 30)
    (damage,) = verify_partition(log.directory)
    assert (damage["kind"], damage["file"]) == ("damage", name)


def test_a_damaged_index_of_aborted_transactions_is_made_anew() -> None:
    """A damaged `.txnindex` is rebuilt from the batches at the next start, as Kafka's recovery does for a segment."""
    disk = new_disk()
    directory = disk.open_dir(ROOT, create=True)
    config = LogConfig(segment_bytes=400)
    log = open_log(directory, config)
    for producer in range(6):
        fields = {"producer_id": producer, "producer_epoch": 0, "is_transactional": True}
        append_verified(log, batch(2, base_sequence=0, **fields))
        end = build_marker(producer, 0, 1, is_commit=False, timestamp_ms=NOW_MS)
        append(log, end, origin=Origin.COORDINATOR)
    expected = log.aborted_transactions(0, 100)
    assert len(expected) == 6
    log.close()
    names = [name for name in directory.list() if name.endswith(".txnindex")]
    assert len(names) > 2
    for name in names:
        truncate_file(directory, name, 30)
    log = open_log(directory, config)
    assert log.aborted_transactions(0, 100) == expected
    log.close()
    assert list(verify_partition(directory)) == []
