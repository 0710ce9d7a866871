"""Opening a log after a crash: torn tails, damage, lost files, and everything that is rebuilt."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from odradek.data_plane.log.dump import verify_partition
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.segments.file_names import file_name
from odradek.env.ports import Dir
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.errors import ErrorCode, KafkaError
from sim.machine.disk import SimDisk
from testkit.by_hand import NOW_MS
from tests.log.support import ROOT, Node, append, batch, content, fill, new_disk, open_log

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=200)
FIRST_LOG = f"{ROOT}/{file_name(0, '.log')}"


def written(batches: int = 20, config: LogConfig = CONFIG) -> tuple[SimDisk, PartitionLog]:
    """Make a closed log of batches of three records from two producers."""
    disk = new_disk()
    log = open_log(disk.open_dir(ROOT, create=True), config)
    for at in range(batches):
        append(
            log,
            batch(
                3, producer_id=at % 2, producer_epoch=0, base_sequence=at // 2 * 3, timestamp=NOW_MS + at * 10
            ),
            epoch=at // 8,
        )
    log.close()
    return disk, log


def reopened(disk: SimDisk, *, clean: bool = False, recovery_point: int = 0) -> PartitionLog:
    return open_log(disk.open_dir(ROOT), CONFIG, clean=clean, recovery_point=recovery_point)


def check_whole(log: PartitionLog, end_offset: int) -> None:
    """Check contents, lookups, epochs and producers of a log that ends at `end_offset`."""
    assert log.log_end_offset == end_offset
    headers = [header for _, header in iter_batches(content(log))]
    assert [header.base_offset for header in headers] == list(range(0, end_offset, 3))
    for offset in range(end_offset):
        (found, *_) = iter_batches(log.read_bytes(offset, 1, upper_bound=end_offset, min_one=True))
        assert found[1].base_offset == offset - offset % 3
        timestamp = NOW_MS + offset // 3 * 10 + offset % 3
        assert log.times().offset_for_timestamp(timestamp, upper_bound=end_offset) == (
            timestamp,
            offset,
            offset // 24,
        )
    assert log.epochs.entries == tuple((epoch, epoch * 24) for epoch in range(-(-end_offset // 24)))
    state = log.load_producers()
    for producer in range(2):
        last = [header for header in headers if header.producer_id == producer]
        if last:
            assert state.entries[producer].last_sequence == last[-1].last_sequence
            assert state.entries[producer].last_offset == last[-1].last_offset
        else:
            assert producer not in state.entries


def test_after_a_clean_shutdown_segments_are_not_read() -> None:
    """After a clean shutdown only the last segment is read, from its last index entry on."""
    disk, _ = written()
    reads: list[tuple[str, int]] = []
    disk.on_operation = lambda operation, path, position, count: (
        reads.append((path, position)) if operation == "read" and path.endswith(".log") else None
    )
    log = reopened(disk, clean=True)
    last = log.segments[-1]
    assert {path for path, _ in reads} == {last.file.path}
    assert len(log.segments) > 3
    disk.on_operation = None
    check_whole(log, 60)


@pytest.mark.parametrize("recovery_point", [0, 1, 15, 24, 25, 59, 60])
def test_what_was_not_synced_is_read_again(recovery_point: int) -> None:
    """After a crash, recovery reads from the segment of the recovery point on, and rebuilds indexes and snapshots."""
    disk, _ = written()
    directory = disk.open_dir(ROOT)
    for name in directory.list():
        if name.endswith((".index", ".timeindex")):
            directory.remove(name)
    log = reopened(disk, recovery_point=recovery_point)
    check_whole(log, 60)
    assert log.recovery_point == recovery_point
    log.flush()
    assert log.recovery_point == 60
    log.close()
    assert list(verify_partition(directory)) == []
    check_whole(reopened(disk, clean=True), 60)


def test_a_tail_torn_at_any_byte_is_cut_off() -> None:
    """A tail is torn at any byte. The log ends after the last whole batch, and the next append continues there."""
    size = len(batch(3, producer_id=0, producer_epoch=0, base_sequence=0))
    for cut in range(1, size + 1):
        disk, log = written(9)
        active = log.segments[-1]
        file = disk.open_dir(ROOT).open(active.name(".log"))
        file.truncate(file.size - cut)
        log = reopened(disk, recovery_point=10)
        assert log.log_end_offset == 24
        assert append(log, batch(3)).base_offset == 24
        log.close()
        assert reopened(disk, clean=True).log_end_offset == 27


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_a_bit_flipped_at_any_byte_is_noticed(mask: int) -> None:
    """A bit is flipped in any byte of a batch. It is noticed, except in the leader epoch, which no checksum covers."""
    size = len(batch(3, producer_id=0, producer_epoch=0, base_sequence=0))
    for position in range(size):
        disk, _ = written(4)
        disk.corrupt(FIRST_LOG, 2 * size + position, mask)
        log = reopened(disk)
        if 12 <= position < 16:
            assert log.log_end_offset == 12
        else:
            assert log.log_end_offset <= 6 or (position < 8 and log.log_end_offset != 12)


@pytest.mark.parametrize("byte", range(4))
def test_an_offset_that_no_segment_reaches_ends_the_log_before_it(byte: int) -> None:
    """A flipped bit in a base offset moves it beyond the segment.

    The log ends before this batch, as no checksum covers base offsets.
    """
    size = len(batch(3, producer_id=0, producer_epoch=0, base_sequence=0))
    disk, _ = written(4)
    disk.corrupt(FIRST_LOG, 2 * size + byte, 0x40)
    log = reopened(disk)
    check_whole(log, 6)
    assert append(log, batch(3)).base_offset == 6


def test_zeros_behind_the_log_are_cut_off() -> None:
    """A power loss leaves zeros after the written data. They are cut off."""
    disk, log = written(4)
    disk.open_dir(ROOT).open(log.segments[-1].name(".log")).append(bytes(5000))
    check_whole(reopened(disk), 12)


def test_what_follows_damage_is_no_part_of_the_log() -> None:
    """A segment is damaged.

    The log ends there, later segments are removed, and the log line names file and position.
    """
    node = Node(CONFIG)
    log = node.log()
    fill(log, 20, 3)
    bases = [segment.base_offset for segment in log.segments]
    node.disk.crash("all")
    node.disk.corrupt(f"{ROOT}/t-0/{file_name(bases[1], '.log')}", 30)
    node.start()
    log = node.log()
    assert log.log_end_offset == bases[1]
    (event,) = node.events("log.truncated")
    assert event["file"].endswith(file_name(bases[1], ".log"))
    assert (event["position"], event["reason"]) == (0, "the batch's checksum is wrong")
    assert len(node.events("log.segment_dropped")) == len(bases) - 2
    node.look(70_000)
    names = node.disk.open_dir(ROOT).subdir("t-0").list()
    assert [name for name in names if name.endswith(".log")] == [
        file_name(0, ".log"),
        file_name(bases[1], ".log"),
    ]


def cut_files(disk: SimDisk) -> dict[str, bytes]:
    directory = disk.open_dir(ROOT)
    return {name: directory.read_bytes(name) for name in directory.list() if name.endswith(".cut")}


@pytest.mark.reaches("recovery.synced_tail_kept_aside")
def test_what_had_been_synced_is_kept_when_damage_cuts_it_off() -> None:
    """Damage below the recovery point cuts off synced records.

    They are kept in a file, since they may be the only copy.
    """
    disk, log = written()
    last = log.segments[-1].base_offset
    position = len(disk.open_dir(ROOT).read_bytes(file_name(last, ".log"))) // 2
    before = disk.open_dir(ROOT).read_bytes(file_name(last, ".log"))
    first_bad = [at for at, _ in iter_batches(before) if at <= position][-1]
    disk.corrupt(f"{ROOT}/{file_name(last, '.log')}", position)
    damaged = disk.open_dir(ROOT).read_bytes(file_name(last, ".log"))
    log = reopened(disk, recovery_point=60)
    assert log.log_end_offset < 60
    assert cut_files(disk) == {f"{file_name(last, '.log')}.{first_bad}.cut": damaged[first_bad:]}
    append(log, batch(3), epoch=9)
    end_offset = log.log_end_offset
    log.close()
    assert reopened(disk, recovery_point=end_offset).log_end_offset == end_offset
    assert len(cut_files(disk)) == 1


def test_segments_behind_such_damage_are_kept_whole() -> None:
    """Segments after the damage are also kept in files.

    They may be unsynced, but acknowledged and intact in the page cache.
    """
    disk, log = written()
    bases = [segment.base_offset for segment in log.segments]
    sound = {base: disk.open_dir(ROOT).read_bytes(file_name(base, ".log")) for base in bases}
    disk.corrupt(f"{ROOT}/{file_name(bases[1], '.log')}", 30)
    assert reopened(disk, recovery_point=bases[1] + 3).log_end_offset == bases[1]
    kept = cut_files(disk)
    assert kept.pop(f"{file_name(bases[1], '.log')}.0.cut")[31:] == sound[bases[1]][31:]
    assert kept == {f"{file_name(base, '.log')}.0.cut": sound[base] for base in bases[2:]}


def test_a_torn_tail_leaves_no_copy() -> None:
    """A torn tail above the recovery point leaves no copy. Only synced records are kept beside the log."""
    disk, log = written()
    disk.corrupt(f"{ROOT}/{file_name(log.segments[1].base_offset, '.log')}", 30)
    assert reopened(disk, recovery_point=0).log_end_offset == log.segments[1].base_offset
    assert cut_files(disk) == {}


def test_a_disk_without_room_for_the_copy_is_recovered_all_the_same() -> None:
    """There is no room for the copy of the cut records. The log is recovered without it."""
    disk, log = written()
    last = log.segments[-1].base_offset
    disk.corrupt(f"{ROOT}/{file_name(last, '.log')}", 30)
    disk.capacity_bytes = disk.used_bytes
    assert reopened(disk, recovery_point=60).log_end_offset == last
    assert cut_files(disk) == {}


def test_rot_below_the_recovery_point_is_found_by_verification() -> None:
    """Damage below the recovery point is not read at a start. `odradek log dump --verify` reports file and position."""
    disk, _ = written()
    disk.corrupt(FIRST_LOG, 400)
    log = reopened(disk, recovery_point=60)
    assert log.log_end_offset == 60
    damage = list(verify_partition(disk.open_dir(ROOT)))
    assert [(item["file"], item["reason"]) for item in damage] == [
        (file_name(0, ".log"), "the batch's checksum is wrong")
    ]


@pytest.mark.parametrize("clean", [False, True])
def test_rot_below_the_recovery_point_keeps_no_log_from_opening(clean: bool) -> None:
    """The snapshot of producers begins within a damaged segment.

    The log opens, and producers in the damaged part are unknown.
    """
    disk, log = written()
    end, within = log.log_end_offset, 6
    assert within < log.segments[1].base_offset
    directory = disk.open_dir(ROOT)
    newest = max(name for name in directory.list() if name.endswith(".snapshot"))
    directory.write_atomic(file_name(within, ".snapshot"), directory.read_bytes(newest))
    for name in directory.list():
        if name.endswith(".snapshot") and name != file_name(within, ".snapshot"):
            directory.remove(name)
    disk.corrupt(FIRST_LOG, 16)
    again = reopened(disk, clean=clean, recovery_point=end)
    assert again.log_end_offset == end
    assert {found.producer_id for found in again.load_producers().active_producers()} == {0, 1}


def test_a_lost_segment_ends_the_log() -> None:
    """A segment or the end of one is lost.

    The log ends there, since the next segment must begin where the previous one ends.
    """
    disk, log = written()
    middle = log.segments[2]
    disk.open_dir(ROOT).remove(middle.name(".log"))
    check_whole(reopened(disk), middle.base_offset)
    disk, log = written()
    file = disk.open_dir(ROOT).open(file_name(0, ".log"))
    file.truncate(file.size - len(batch(3)))
    assert reopened(disk).log_end_offset == log.segments[1].base_offset - 3


def test_compacted_logs_may_have_gaps_between_segments() -> None:
    """Segments of a compacted log may have gaps between them.

    A follower names each segment after the first offset in it.
    """
    disk, log = written()
    middle = log.segments[2]
    disk.open_dir(ROOT).remove(middle.name(".log"))
    compacted = LogConfig(segment_bytes=700, cleanup_policy=("compact",))
    recovery_point = middle.base_offset + 1
    log = open_log(disk.open_dir(ROOT), compacted, clean=False, recovery_point=recovery_point)
    assert log.log_end_offset == 60


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_compacted_topics_lost_tail_is_no_gap_of_compaction(policy: str) -> None:
    """The unsynced end of a compacted topic's segment is lost.

    This gap does not come from compaction, so the rest is fetched again.
    """
    _, directory = _with_a_gap([0, 1, 4, 7], list(range(8, 16)), list(range(20, 30)))
    config = LogConfig(cleanup_policy=(policy,))
    log = open_log(directory, config, clean=False, recovery_point=8, first_dirty_offset=8)
    assert log.log_end_offset == 16
    assert content(log).count(b"v" * 20) == 12


def _with_a_gap(*offsets: list[int]) -> tuple[SimDisk, Dir]:
    """Make the directory of a log whose segments have these offsets, one in each batch, as a cleaner leaves them."""
    disk = new_disk()
    directory = disk.open_dir(ROOT, create=True)
    for each in offsets:
        file = directory.open(file_name(each[0], ".log"), create=True)
        for offset in each:
            file.append(batch(1, base_offset=offset, leader_epoch=0))
        file.close()
    return disk, directory


def test_a_gap_in_what_was_synced_is_a_gap_of_the_log() -> None:
    """A gap below the recovery point is accepted whatever the topic's policy is now, as in Kafka."""
    first, second, third = list(range(8)), list(range(10, 20)), list(range(20, 30))
    for recovery_point in (9, 10, 15, 20, 30):
        _, directory = _with_a_gap(first, second, third)
        log = open_log(directory, clean=False, recovery_point=recovery_point)
        assert log.log_end_offset == 30, recovery_point
        assert content(log).count(b"v" * 20) == 28, recovery_point


def test_gaps_within_segments_vouch_for_those_between() -> None:
    """A log without checkpoints has a gap within a segment, so it was compacted.

    Gaps between its segments are accepted.
    """
    for is_known, end_offset in ((True, 8), (False, 26)):
        _, directory = _with_a_gap([0, 1, 4, 7], list(range(10, 20)), [20, 25])
        assert open_log(directory, clean=False, is_known=is_known).log_end_offset == end_offset


def test_gaps_behind_a_gap_vouch_for_it_where_no_checkpoint_knows_the_log() -> None:
    """A log without checkpoints has a gap, and later an empty segment or gaps within segments.

    It was compacted, so the gap is accepted.
    """
    for is_emptied in (True, False):
        for later in ([20, 25], [24, 25]):
            _, directory = _with_a_gap([0, 1, 2, 3], list(range(10, 20)), later)
            if is_emptied:
                directory.open(file_name(0, ".log")).truncate(0)
            if later[0] != 20:
                directory.rename(file_name(later[0], ".log"), file_name(20, ".log"))
            log = open_log(directory, clean=False, is_known=False)
            assert log.log_end_offset == 26
            assert content(log).count(b"v" * 20) == (12 if is_emptied else 16)


@pytest.mark.parametrize("recovery_point", [0, 2])
def test_a_checkpoint_that_knows_the_log_lets_nobody_vouch_for_a_gap(recovery_point: int) -> None:
    """A checkpoint lists the log with a low recovery point, as during a truncation to the log's start.

    A gap above this point ends the log.
    """
    _, directory = _with_a_gap([0, 1, 2, 3], list(range(10, 20)), [20, 25])
    assert open_log(directory, clean=False, recovery_point=recovery_point).log_end_offset == 4


def test_what_is_sound_behind_a_lost_tail_is_kept_beside_the_log() -> None:
    """An unsynced tail is lost. The log ends there, and intact later segments are reported and kept in files."""
    node = Node(CONFIG)
    log = node.log()
    fill(log, 20, 3)
    first, *later = log.segments
    node.disk.crash("all")
    directory = node.disk.open_dir(ROOT).subdir("t-0")
    file = directory.open(first.name(".log"))
    file.truncate(file.size - len(batch(3)))
    node.start()
    assert node.log().log_end_offset == later[0].base_offset - 3
    dropped = node.events("log.segment_dropped")
    assert len(dropped) == len(later)
    names = directory.list()
    assert all(event["kept_as"] in names for event in dropped)


def test_a_segment_that_reaches_over_the_next_one_is_cut() -> None:
    """A power loss undoes a truncation, but keeps the segment that was begun after it.

    The longer segment is cut at the new one's start.
    """
    disk = new_disk()
    directory = disk.open_dir(ROOT, create=True)
    log = open_log(directory)
    fill(log, 5, 3)
    log.flush()
    old = content(log)
    log.truncate_to(6)
    append(log, batch(3, value=b"new"), epoch=9)
    expected = content(log)
    assert [segment.base_offset for segment in log.segments] == [0, 6]
    file = directory.open(file_name(0, ".log"))
    file.append(old[file.size :])
    log = open_log(directory, clean=False, recovery_point=6)
    assert (log.log_end_offset, content(log)) == (9, expected)


# --- indexes


def damage_zero(directory: Dir, name: str) -> None:
    file = directory.open(name)
    size = file.size
    file.truncate(0)
    file.append(bytes(size))


def damage_cut(directory: Dir, name: str) -> None:
    file = directory.open(name)
    file.truncate(file.size - 3)


def damage_remove(directory: Dir, name: str) -> None:
    directory.remove(name)


def damage_swap(directory: Dir, name: str) -> None:
    file = directory.open(name)
    data = file.pread(file.size, 0)
    file.truncate(0)
    file.append(data[len(data) // 2 :] + data[: len(data) // 2])


@pytest.mark.parametrize("damage", [damage_cut, damage_remove, damage_swap])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_cannot_be_right_is_rebuilt(damage: Callable[[Dir, str], None], suffix: str) -> None:
    """A missing, cut or disordered index is rebuilt from its segment at the first use."""
    config = LogConfig(segment_bytes=3000, index_interval_bytes=200)
    disk, log = written(40, config)
    directory = disk.open_dir(ROOT)
    for segment in log.segments[:-1]:
        damage(directory, segment.name(suffix))
    log = open_log(directory, config, clean=True)
    check_whole(log, 120)
    log.abandon()
    assert list(verify_partition(directory)) == []


@pytest.mark.reaches("log.index_misled_a_search")
def test_a_bit_flipped_anywhere_in_an_index_leads_nowhere_wrong() -> None:
    """A bit is flipped in an index, and entries still ascend.

    A lookup notices that the entry points at no batch, and rebuilds the index.
    """
    config = LogConfig(segment_bytes=3000, index_interval_bytes=200)
    for byte in range(64):
        disk, log = written(40, config)
        disk.corrupt(f"{ROOT}/{log.segments[0].name('.index')}", byte, 0x04)
        log = open_log(disk.open_dir(ROOT), config, clean=True)
        for offset in range(log.segments[1].base_offset):
            (found, *_) = iter_batches(log.read_bytes(offset, 1, upper_bound=120, min_one=True))
            assert found[1].base_offset <= offset <= found[1].last_offset, (byte, offset)


def test_an_empty_index_only_costs_time() -> None:
    """An index of zeros, as Kafka preallocates it, has no entries. Scans begin at the segment's start."""
    disk, log = written()
    directory = disk.open_dir(ROOT)
    damage_zero(directory, log.segments[0].name(".index"))
    check_whole(reopened(disk, clean=True), 60)


def test_index_files_without_a_segment_are_removed() -> None:
    """Index files whose segment was removed before a crash are removed."""
    disk, _ = written()
    directory = disk.open_dir(ROOT)
    directory.open(file_name(999, ".index"), create=True)
    directory.open(file_name(999, ".timeindex"), create=True)
    reopened(disk, clean=True)
    assert file_name(999, ".index") not in directory.list()


# --- other files


@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_snapshot_is_no_source(clean: bool) -> None:
    """Snapshots of producers are damaged.

    Their state comes from the last valid snapshot and later batches, or only from batches.
    """
    for keep in (0, 1, 2):
        disk, _ = written()
        directory = disk.open_dir(ROOT)
        snapshots = [name for name in directory.list() if name.endswith(".snapshot")]
        for name in snapshots[keep:]:
            disk.corrupt(f"{ROOT}/{name}", 8)
        check_whole(reopened(disk, clean=clean, recovery_point=60), 60)


@pytest.mark.parametrize(("clean", "recovery_point"), [(True, 0), (False, 0), (False, 60)])
def test_a_damaged_epoch_file_is_made_anew(clean: bool, recovery_point: int) -> None:
    """The file of leader epochs is damaged.

    It is rebuilt from the batches, since a follower needs it to find where its log diverges from the leader's
    (KIP-595).
    """
    disk, _ = written()
    disk.corrupt(f"{ROOT}/leader-epoch-checkpoint", 0)
    check_whole(reopened(disk, clean=clean, recovery_point=recovery_point), 60)


def test_interrupted_work_is_finished() -> None:
    """Files of interrupted work are finished.

    `.deleted` and `.cleaned` are removed, and a complete `.swap` replaces its sources.
    """
    disk, log = written()
    directory = disk.open_dir(ROOT)
    expected = content(reopened(disk, clean=True))
    first, second = (directory.read_bytes(segment.name(".log")) for segment in log.segments[:2])
    directory.open(file_name(0, ".log.swap"), create=True).append(first + second)
    directory.open(file_name(30, ".log.cleaned"), create=True).append(b"half")
    directory.open(file_name(7, ".log.deleted"), create=True).append(b"gone")
    log = open_log(directory, LogConfig(index_interval_bytes=200), clean=False)
    assert content(log) == expected
    assert not any(name.endswith((".swap", ".cleaned", ".deleted")) for name in directory.list())
    assert [segment.base_offset for segment in log.segments][:2] == [0, 24]


def test_the_checkpointed_log_start_wins_over_a_shorter_log() -> None:
    """The checkpointed log start is above the log's end. The log begins anew there, as in Kafka."""
    disk, _ = written()
    log = open_log(disk.open_dir(ROOT), CONFIG, clean=False, log_start_offset=70)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (70, 70, 0)
    log = open_log(disk.open_dir(ROOT), CONFIG, clean=False)
    assert log.log_end_offset == 70


def test_checkpoints_are_reconciled_with_the_log() -> None:
    """The checkpointed high watermark is outside of the log. It is moved to the log's start or end."""
    for high_watermark, expected in ((-1, 6), (3, 6), (20, 20), (99, 60)):
        disk, _ = written()
        log = open_log(
            disk.open_dir(ROOT), CONFIG, clean=True, log_start_offset=6, high_watermark=high_watermark
        )
        assert (log.log_start_offset, log.high_watermark) == (6, expected)
        with pytest.raises(KafkaError) as caught:
            log.read(5, 1, upper_bound=60)
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_batch_longer_than_the_chunk_is_checked_piece_by_piece() -> None:
    """Recovery reads through one buffer of fixed size. A longer batch is checked in pieces."""
    disk = new_disk()
    directory = disk.open_dir(ROOT, create=True)
    log = open_log(directory)
    for size in (10, 900, 70_000, 5, 200_000, 1):
        append(log, batch(2, value=b"x" * size))
    for buffer_bytes in (100, 1000, 65_536, 1 << 20):
        found = open_log(directory, clean=False, buffer=bytearray(buffer_bytes))
        assert found.log_end_offset == 12
    disk.corrupt(FIRST_LOG, log.size_bytes - 300)
    for buffer_bytes in (100, 1000, 65_536, 1 << 20):
        disk.crash("all")
        damaged = open_log(disk.open_dir(ROOT), clean=False, buffer=bytearray(buffer_bytes))
        assert damaged.log_end_offset == 8
