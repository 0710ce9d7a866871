"""The swap of cleaned segments for their sources: readers, refusals, and full disks."""

from __future__ import annotations

import errno
from random import Random

import pytest

from odradek.data_plane.log.cleaning_pass import CleaningAborted, begin_cleaning, cleanable_end
from odradek.data_plane.log.directory.checkpoints import CLEANER_FILE, decode_offsets
from odradek.data_plane.log.dump import verify_partition
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.env.ports import Dir, DiskFull, FileMissing
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.record_batch import RecordBatchBuilder
from sim.machine.disk import SimDisk
from testkit.by_hand import NOW_MS
from tests.log.compacted.naive_cleaner import clean, clean_group, latest_values, visible
from tests.log.support import ROOT, Node, append, content, new_disk, open_log, retain

COMPACTED = LogConfig(
    cleanup_policy=("compact",), segment_bytes=600, index_interval_bytes=150, file_delete_delay_ms=60_000
)


def keyed(random: Random, sequence: int = -1, keys: int = 7) -> bytearray:
    """Make a batch of records with few keys. With a sequence number, it is a batch of producer 5."""
    builder = RecordBatchBuilder(
        compression_type=random.choice([0, 0, 1, 4]),
        producer_id=5 if sequence >= 0 else -1,
        producer_epoch=0 if sequence >= 0 else -1,
        base_sequence=sequence,
    )
    for at in range(random.randint(1, 4)):
        value = None if random.random() < 0.15 else b"v%d" % random.getrandbits(60)
        builder.append(NOW_MS + at, b"key%d" % random.randrange(keys), value)
    return builder.build()


def fill_keyed(log: PartitionLog, random: Random, batches: int, sequence: int = 0, keys: int = 7) -> int:
    """Append keyed batches of several leader epochs. Return the producer's next sequence number."""
    for _ in range(batches):
        is_idempotent = random.random() < 0.4
        data = keyed(random, sequence if is_idempotent else -1, keys)
        result = append(
            log, data, epoch=log.latest_epoch + (random.random() < 0.1) if log.log_end_offset else 0
        )
        if is_idempotent:
            sequence += result.last_offset - result.base_offset + 1
    log.advance_high_watermark(log.log_end_offset)
    return sequence


def written(seed: int = 1, batches: int = 40, disk: SimDisk | None = None) -> tuple[Node, PartitionLog, int]:
    """Make a flushed log of many small segments. Return also the producer's next sequence number."""
    node = Node(COMPACTED, disk or new_disk(seed))
    log = node.log()
    sequence = fill_keyed(log, Random(seed), batches)
    log.flush()
    node.log_dir.checkpoints.write_recovery_points()
    return node, log, sequence


def directory_of(node: Node) -> Dir:
    return node.disk.open_dir(ROOT).subdir("t-0")


def temporary_files(directory: Dir) -> list[str]:
    return [name for name in directory.list() if name.endswith((".cleaned", ".swap", ".deleted"))]


@pytest.mark.parametrize("seed", range(8))
def test_a_pass_keeps_the_latest_of_every_key_at_its_offset(seed: int) -> None:
    """A pass keeps the latest record of every key at its offset and in order, and joins segments."""
    node, log, sequence = written(seed)
    before, segments, epochs = visible(log), len(log.segments), log.epochs.entries
    end = cleanable_end(log)
    assert end > 20
    cleaning = clean(log, end, Random(seed))
    after = visible(log)
    latest = {record.key: record.offset for record in before if record.offset < end}
    assert after == [
        record for record in before if record.offset >= end or latest[record.key] == record.offset
    ]
    assert latest_values(after) == latest_values(before)
    assert len(log.segments) < segments
    assert log.epochs.entries == epochs
    assert cleaning.bytes_after < cleaning.bytes_before
    assert log.cleaning.first_dirty_offset == end
    ends = [list(iter_batches(segment.file.pread(segment.size, 0)))[-1][1] for segment in log.segments[:-1]]
    assert [last.next_offset for last in ends] == [segment.base_offset for segment in log.segments[1:]]
    assert not list(verify_partition(directory_of(node)))
    assert not temporary_files(directory_of(node))
    assert log.load_producers().entries[5].last_sequence == sequence - 1
    for offset in range(log.log_end_offset):
        (_, first), *_ = iter_batches(log.read_bytes(offset, 1, upper_bound=log.log_end_offset, min_one=True))
        assert first.last_offset >= offset
        assert not any(offset <= record.offset < first.base_offset for record in after)


def test_a_cleaned_log_starts_again_as_it_was() -> None:
    """After a stop or a crash, a cleaned log has the same indexes, producers and first dirty offset."""
    for clean_stop in (True, False):
        node, log, sequence = written(3)
        end = cleanable_end(log)
        clean(log, end, Random(3))
        expected = content(log)
        times = [record.timestamp for record in visible(log)]
        found = [log.times().offset_for_timestamp(time, upper_bound=log.log_end_offset) for time in times]
        if clean_stop:
            node.log_dir.close_clean(1)
        else:
            node.look(1)
        node.disk.crash("synced")
        node.start()
        log = node.log()
        assert content(log) == expected
        assert log.cleaning.first_dirty_offset == end
        assert log.load_producers().entries[5].last_sequence == sequence - 1
        assert [
            log.times().offset_for_timestamp(time, upper_bound=log.log_end_offset) for time in times
        ] == found


def test_a_fetch_in_flight_survives_a_swap() -> None:
    """A pinned range remains readable during a swap. The next fetch reads the cleaned segment."""
    _, log, _ = written()
    old = content(log)
    pinned = [
        log.read(segment.base_offset, 1 << 20, upper_bound=log.log_end_offset) for segment in log.segments
    ]
    clean(log, cleanable_end(log), Random(1))
    parts = []
    for found in pinned:
        assert found.file is not None
        parts.append(found.file.pread(found.count, found.position))
        found.release()
    assert b"".join(parts) == old
    assert content(log) != old


def timed(log: PartitionLog) -> list[tuple[int, int, int]]:
    """Return timestamp, offset and leader epoch of each record."""
    return [(record.timestamp, record.offset, record.leader_epoch) for record in visible(log)]


@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize("reader", ["offset", "time", "newest"])
def test_a_reader_in_a_worker_that_meets_a_swap_looks_again(number: int, reader: str) -> None:
    """A swap comes while a worker reads. The read is repeated and finds the right records."""
    node, log, _ = written(6)
    node.log_dir.close_clean(1)
    node.disk.crash("all")
    node.start()
    log = node.log()
    end = log.log_end_offset
    log.advance_high_watermark(end)
    asked = log.segments[3].base_offset
    before = timed(log)
    when = before[asked][0]
    for segment in log.segments[:-1]:
        segment.index = None
        segment.max_timestamp_ms = -2
    seen = 0

    def swap(operation: str, path: str, position: int, count: int) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            clean(log, cleanable_end(log), Random(1), groups_of=5)

    node.disk.on_operation = swap
    if reader == "offset":
        data = log.read_bytes(asked, 1 << 20, upper_bound=end)
        (_, first), *_ = iter_batches(data)
        assert first.last_offset >= asked
        found = None
    elif reader == "time":
        found = log.times().offset_for_timestamp(when, upper_bound=end)
    else:
        found = log.times().offset_of_max_timestamp(end)
    node.disk.on_operation = None
    after = timed(log)
    if reader == "time":
        assert found in [
            next(record for record in records if record[0] >= when) for records in (before, after)
        ]
    if reader == "newest":
        assert found is not None
        assert found in before + after
        assert found[0] in (max(before)[0], max(after)[0])


@pytest.mark.parametrize("operation", ["append", "create", "rename"])
def test_a_full_disk_loses_nothing(operation: str) -> None:
    """The disk is full during a pass. The cleaned files are removed, the sources stay, and a later pass succeeds."""
    for number in range(1, 12):
        node, log, _ = written(2)
        before = content(log)
        node.disk.fail_next(errno.ENOSPC, operation=operation, path_part=".cleaned", times=number)
        while True:
            try:
                clean(log, cleanable_end(log), Random(2))
                break
            except DiskFull:
                assert content(log) == before
                assert not temporary_files(directory_of(node))
                assert log.cleaning.first_dirty_offset == -1
        assert not node.offline
        assert not list(verify_partition(directory_of(node)))


def test_extra_space_is_one_segments_worth() -> None:
    """A pass that swaps each group at once needs room for one or two more segments, and not for a copy of the log."""
    node, log, _ = written(4, 120)
    used = peak = node.disk.used_bytes

    def watch(operation: str, path: str, position: int, count: int) -> None:
        nonlocal peak
        peak = max(peak, node.disk.used_bytes)

    node.disk.on_operation = watch
    clean(log, cleanable_end(log), Random(4), groups_of=1)
    assert node.disk.used_bytes < used
    assert peak <= used + 2 * COMPACTED.segment_bytes


# --- what a pass may not do


def test_a_pass_ends_below_what_is_committed_synced_and_finished() -> None:
    """A pass stays below the high watermark, the recovery point and the active segment."""
    _, log, _ = written()
    assert cleanable_end(log) == log.active.base_offset
    with pytest.raises(AssertionError):
        begin_cleaning(log, log.active.base_offset + 1)
    assert log.cleaning.token is None
    node = Node(COMPACTED)
    log = node.log()
    fill_keyed(log, Random(1), 20)
    assert cleanable_end(log) == 0
    log.flush()
    assert cleanable_end(log) == log.active.base_offset > 0


def test_one_pass_at_a_time() -> None:
    """A second pass over the same log is refused, since both would write the same files."""
    _, log, _ = written()
    first = begin_cleaning(log, cleanable_end(log))
    with pytest.raises(AssertionError):
        begin_cleaning(log, cleanable_end(log))
    first.end()
    begin_cleaning(log, cleanable_end(log)).end()


ABORTS = {
    "truncation": lambda node, log: log.truncate_to(log.segments[2].base_offset),
    "start over": lambda node, log: log.truncate_fully_and_start_at(1000),
    "DeleteRecords": lambda node, log: log.set_log_start_offset(1),
    "policy": lambda node, log: log.set_config(LogConfig(cleanup_policy=("delete",))),
    "deletion": lambda node, log: node.log_dir.delete_log("t", 0),
    "set aside": lambda node, log: node.log_dir.set_stray("t", 0),
    "offline": lambda node, log: node.log_dir.go_offline("test"),
}


@pytest.mark.parametrize("how", ABORTS)
@pytest.mark.parametrize("when", ["before", "writing", "written"])
def test_what_aborts_a_pass(how: str, when: str) -> None:
    """A log is truncated, closed or given another policy during a pass.

    The pass makes no further swaps, and its files are removed.
    """
    node, log, _ = written()
    cleaning = begin_cleaning(log, cleanable_end(log))
    directory = log.directory
    abort = ABORTS[how]
    bases = [segment.base_offset for segment in log.segments]
    if when == "before":
        abort(node, log)
        assert cleaning.take_group(bases[0], bases[2]) is None
        assert cleaning.abort_reason
        cleaning.complete(cleaning.end_offset)
        cleaning.end()
        assert log.cleaning.first_dirty_offset == -1
        return
    group = cleaning.take_group(bases[0], bases[2])
    assert group is not None
    cleaned = cleaning.begin_segment(group)
    data = group.sources[0].file.pread(group.sources[0].size, 0)
    cleaned.append(data)
    *_, (_, last) = iter_batches(group.sources[1].file.pread(group.sources[1].size, 0))
    if when == "writing":
        abort(node, log)
        with pytest.raises(CleaningAborted):
            cleaned.append(data)
    else:
        cleaned.finish(last, ())
        abort(node, log)
        after = [] if log.is_closed else visible(log)
        assert not cleaning.swap(group, cleaned)
        assert log.is_closed or visible(log) == after
    group.release()
    cleaned.discard()
    cleaning.complete(cleaning.end_offset)
    cleaning.end()
    assert log.cleaning.first_dirty_offset == -1
    if not log.is_closed:
        assert not [name for name in temporary_files(directory) if not name.endswith(".deleted")]
        assert not list(verify_partition(directory))


@pytest.mark.reaches("cleaner.sources_went")
def test_a_group_that_retention_has_taken_from_stays() -> None:
    """With compact,delete, retention removes a segment during a pass. Only this group is skipped."""
    node, log, _ = written()
    log.set_config(
        LogConfig(cleanup_policy=("compact", "delete"), segment_bytes=600, retention_bytes=log.size_bytes - 1)
    )
    cleaning = begin_cleaning(log, cleanable_end(log))
    bases = [segment.base_offset for segment in log.segments]
    groups = [cleaning.take_group(bases[0], bases[2]), cleaning.take_group(bases[2], bases[4])]
    node.clock.now_ms += 1
    log.config = LogConfig(
        cleanup_policy=("compact", "delete"), retention_bytes=log.size_bytes - log.segments[0].size
    )
    assert retain(log, NOW_MS) == 1
    kept = visible(log)
    first, second = groups
    assert first is not None
    assert second is not None
    assert not clean_group(cleaning, first, {}, set())
    assert visible(log) == kept
    assert clean_group(cleaning, second, {}, set())
    assert visible(log) == kept
    assert cleaning.take_group(bases[0], bases[2]) is None
    cleaning.end()


# --- the checkpoint


def checkpointed(node: Node) -> dict[tuple[str, int], int]:
    try:
        data = node.disk.open_dir(ROOT).read_bytes(CLEANER_FILE)
    except FileMissing:
        return {}
    return {tuple(key): offset for key, offset in decode_offsets(data).items()}  # type: ignore[misc]


def test_the_checkpoint_says_up_to_where_a_log_is_clean() -> None:
    """`cleaner-offset-checkpoint` of a disk, in Kafka's format, is written after a pass.

    A deleted log's entry is removed.
    """
    node, log, _ = written()
    node.look(1)
    assert checkpointed(node) == {}
    end = cleanable_end(log)
    clean(log, end, Random(1))
    node.look(1)
    assert node.disk.open_dir(ROOT).read_bytes(CLEANER_FILE) == f"0\n1\nt 0 {end}\n".encode()
    node.log_dir.delete_log("t", 0)
    node.look(1)
    assert checkpointed(node) == {}
    fresh = node.log()
    assert fresh.cleaning.first_dirty_offset == -1


def test_a_truncation_lowers_the_checkpoint_before_it_cuts() -> None:
    """A truncation lowers the cleaner's checkpoint first.

    Records that are appended later are then never taken for clean.
    """
    node, log, _ = written()
    end = cleanable_end(log)
    clean(log, end, Random(1))
    node.look(1)
    target = log.segments[1].base_offset
    assert target < end
    log.truncate_to(end + 1)
    assert checkpointed(node) == {("t", 0): end}
    log.truncate_to(target)
    assert log.cleaning.first_dirty_offset <= target
    assert checkpointed(node) == {("t", 0): log.cleaning.first_dirty_offset}
    node.disk.crash("synced")
    node.start()
    assert node.log().cleaning.first_dirty_offset <= target


def test_a_checkpoint_beyond_the_log_counts_for_nothing() -> None:
    """The cleaner's checkpoint is beyond the log's end. It is ignored, and the whole log is dirty, as in Kafka."""
    node, log, _ = written()
    log.set_log_start_offset(3)
    node.log_dir.close_clean(1)
    node.disk.crash("all")
    node.disk.open_dir(ROOT).write_atomic(CLEANER_FILE, b"0\n1\nt 0 100000\n")
    node.start()
    assert node.log().cleaning.first_dirty_offset == 3
    node.look(1)
    assert checkpointed(node) == {("t", 0): 3}


def test_a_log_of_the_same_name_inherits_no_checkpoint() -> None:
    """A log is set aside, and a new one of its name is created after a restart. The new log is not taken for clean."""
    node, log, _ = written()
    clean(log, cleanable_end(log), Random(1))
    node.look(1)
    node.log_dir.set_stray("t", 0)
    node.disk.crash("all")
    node.start()
    assert node.log().cleaning.first_dirty_offset == -1
    assert checkpointed(node) == {}


def test_a_gap_below_the_first_dirty_offset_is_the_cleaners() -> None:
    """Below the first dirty offset, gaps between segments come from the cleaner.

    All segments are kept, even if the policy has changed.
    """
    node, log, _ = written()
    directory = directory_of(node)
    bases = [segment.base_offset for segment in log.segments]
    node.disk.crash("all")
    directory = node.disk.open_dir(ROOT).subdir("t-0")
    for name in directory.list():
        if name.startswith(f"{bases[2]:020d}"):
            directory.remove(name)
    deletes = LogConfig(cleanup_policy=("delete",), segment_bytes=600)
    reopened = open_log(directory, deletes, clean=False, first_dirty_offset=bases[3])
    assert [segment.base_offset for segment in reopened.segments] == bases[:2] + bases[3:]
