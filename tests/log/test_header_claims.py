"""Headers of batches with wrong timestamps. Lookups by time and retention use the timestamps of the records."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from odradek.data_plane.log.cleaning.log_views import read_timestamps, view_of
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import Origin, PartitionLog
from odradek.data_plane.log.segments.walked_times import BLOCK_BYTES, RECORD_COST, WalkBudget
from odradek.wire.batches.batch_header import assign_offsets, seal
from odradek.wire.batches.record_times import newest_timestamp, record_times
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.record_batch import RecordBatchBuilder
from sim.machine.disk import SimDisk
from testkit.by_hand import NOW_MS
from tests.log.support import ROOT, Node, append, new_disk, new_log, open_log, retain
from tests.schedule import examples

HOUR_MS = 3_600_000
THEN_MS = NOW_MS - 2 * HOUR_MS
MAX_TIMESTAMP_AT = 35
LIMITS = {"records_max": 1 << 20, "decompressed_bytes_max": 1 << 28}


def claiming(timestamps: Sequence[int], claimed: int | None, codec: int = 0, size: int = 5) -> bytearray:
    """Make a batch of these records, whose header has another newest timestamp and a valid checksum."""
    builder = RecordBatchBuilder(compression_type=codec)
    for timestamp in timestamps:
        builder.append(timestamp, b"k", b"v" * size)
    data = builder.build()
    if claimed is not None:
        struct.pack_into(">q", data, MAX_TIMESTAMP_AT, claimed)
        seal(data)
    return data


def stored(log: PartitionLog, data: bytearray) -> None:
    """Append a batch unchanged, as another program may have written it to the directory."""
    assign_offsets(data, 0, log.log_end_offset, 0)
    log.append(memoryview(data), Origin.REPLICA, 0, NOW_MS)
    log.advance_high_watermark(log.log_end_offset)


# --- against a model


@attrs.frozen
class Written:
    """A batch to write: timestamps of its records and header, its codec, and whether a segment ends after it."""

    timestamps: tuple[int, ...]
    claimed: int | None
    codec: int
    rolls: bool


times = st.integers(0, 60) | st.integers(-1, 5)
written = st.builds(
    Written,
    timestamps=st.lists(times, min_size=1, max_size=5).map(tuple),
    claimed=st.none() | st.integers(-1, 65),
    codec=st.sampled_from([0, 0, 1, 3, 4]),
    rolls=st.booleans(),
)


@settings(max_examples=examples(300), deadline=None)
@given(
    batches=st.lists(written, min_size=1, max_size=14),
    interval=st.sampled_from([1, 150, 4096]),
    asked=st.lists(st.integers(0, 66), min_size=1, max_size=12),
    bound=st.integers(0, 40),
    restarts=st.booleans(),
    start=st.integers(0, 20) | st.just(0),
)
def test_lookups_say_what_the_records_do(
    batches: list[Written], interval: int, asked: list[int], bound: int, restarts: bool, start: int
) -> None:
    """Whatever the headers say, lookups by time find the records that a model finds."""
    disk = new_disk()
    config = LogConfig(index_interval_bytes=interval, retention_ms=-1)
    log = new_log(config, disk)
    model: list[tuple[int, int]] = []
    ends = [0]
    for each in batches:
        model += [(timestamp, len(model) + at) for at, timestamp in enumerate(each.timestamps)]
        ends.append(len(model))
        stored(log, claiming(each.timestamps, each.claimed, each.codec))
        if each.rolls:
            log.roll(NOW_MS)
    if restarts:
        log.close()
        log = open_log(disk.open_dir(ROOT), config)
        log.advance_high_watermark(log.log_end_offset)
    bound = max(end for end in ends if end <= bound)
    log.set_log_start_offset(min(start, bound))
    for at in asked:
        want = next(((t, o) for t, o in model[:bound] if t >= at and o >= log.log_start_offset), None)
        found = log.times().offset_for_timestamp(at, upper_bound=bound)
        assert (found and found[:2]) == want
    newest = max((t for t, _ in model[:bound]), default=-1)
    want = next(((t, o) for t, o in model[:bound] if t == newest), None) if newest >= 0 else None
    found = log.times().offset_of_max_timestamp(bound)
    assert (found and found[:2]) == want


@settings(max_examples=examples(200), deadline=None)
@given(
    batches=st.lists(written, min_size=1, max_size=10),
    age=st.integers(1, 62),
    restarts=st.booleans(),
)
def test_retention_goes_by_the_records(batches: list[Written], age: int, restarts: bool) -> None:
    """`retention.ms` uses the timestamps of records.

    The oldest segments are removed as far as all of their records have expired. A header with a later timestamp, which
    is not in the future, keeps its segment for longer.
    """
    disk = SimDisk(Random(0), wall_ms=lambda: 60)
    now_ms, limit_ms = 61, 61 - age
    config = LogConfig(retention_ms=age, index_interval_bytes=1)
    log = new_log(config, disk)
    segments: list[tuple[int, int]] = [(-2, -2)]
    """Newest timestamp of the records, and of the headers, in each segment."""
    for each in batches:
        stored(log, claiming(each.timestamps, each.claimed, each.codec))
        newest, claimed = segments[-1]
        true = max(each.timestamps)
        segments[-1] = max(newest, true), max(claimed, true if each.claimed is None else each.claimed)
        if each.rolls:
            log.roll(NOW_MS)
            segments.append((-2, -2))
    if restarts:
        log.close()
        log = open_log(disk.open_dir(ROOT), config)
        log.advance_high_watermark(log.log_end_offset)
    gone = 0
    for newest, claimed in segments:
        if not 0 <= newest < limit_ms or limit_ms <= claimed <= now_ms:
            break
        gone += 1
    assert retain(log, now_ms) == gone


# --- the timestamps in the records


@settings(max_examples=examples(200), deadline=None)
@given(
    timestamps=st.lists(
        st.integers(-1, 200) | st.integers(0, 1 << 41) | st.integers(-(1 << 62), 1 << 62),
        min_size=1,
        max_size=40,
    ),
    size=st.sampled_from([0, 40, 60, 90, 9000, 70_000]),
    codec=st.integers(0, 4),
)
def test_the_newest_timestamp_is_that_of_all_records(timestamps: list[int], size: int, codec: int) -> None:
    """All timestamps are found, even if they differ widely and records span several chunks of decompressed bytes."""
    data = claiming(timestamps, 0, codec, size)
    assert newest_timestamp(data, **LIMITS) == max(timestamps)
    assert [timestamp for _, timestamp in record_times(data, **LIMITS)] == timestamps


@settings(max_examples=examples(300), deadline=None)
@given(
    body=st.binary(max_size=80),
    count=st.integers(1, 12),
    cut=st.integers(0, 30),
)
def test_bytes_that_are_no_records_have_no_newest_timestamp(body: bytes, count: int, cut: int) -> None:
    """Bytes that are no records raise only `KafkaError`.

    If they can be read one by one, both ways give the same timestamp.
    """
    data = claiming(range(count), None)
    mangled = bytearray(data[: 61 + cut]) + body
    struct.pack_into(">i", mangled, 8, len(mangled) - 12)
    seal(mangled)
    try:
        want: int | None = max(timestamp for _, timestamp in record_times(mangled, **LIMITS))
    except KafkaError:
        want = None
    try:
        found = newest_timestamp(mangled, **LIMITS)
    except KafkaError:
        assert want is None
    else:
        assert want in (None, found)


def lying(count: int, config: LogConfig, disk: SimDisk | None = None, size: int = 5) -> PartitionLog:
    """Fill a log with batches a minute apart. Every header has the time of the first record."""
    log = new_log(config, disk)
    for at in range(count):
        stored(log, claiming([THEN_MS + 60_000 * at + 10, THEN_MS + 60_000 * at], THEN_MS, 0, size))
    return log


def test_an_active_segment_is_walked_from_where_the_last_walk_ended() -> None:
    """A second lookup reads only the records that were appended after the first one."""
    log = lying(50, LogConfig())
    last = THEN_MS + 60_000 * 49
    assert log.times().offset_for_timestamp(last, upper_bound=100) == (last + 10, 98, 0)
    size = log.active.size
    stored(log, claiming([last + 60_000], THEN_MS))
    budget = WalkBudget(1000)
    found = log.times(budget).offset_for_timestamp(last + 60_000, upper_bound=101)
    assert found == (last + 60_000, 100, 0)
    assert budget.left == 1000 - (log.active.size - size) - RECORD_COST
    walked = log.active.walked
    assert walked is not None
    assert walked.position == log.active.size


def test_a_budget_bounds_the_walk_and_the_next_lookup_goes_on() -> None:
    """A lookup uses up its budget of work before it has read all records. For the other batches it uses their headers.

    After a few lookups all records have been read.
    """
    log = lying(50, LogConfig())
    wanted = (THEN_MS + 60_000 * 49 + 10, 98, 0)
    assert log.times(WalkBudget(2000)).offset_for_timestamp(THEN_MS + 60_000 * 49, upper_bound=100) is None
    assert log.active.walked is not None
    first = log.active.walked.position
    assert 0 < first < log.active.size
    answers = [
        log.times(WalkBudget(2000)).offset_for_timestamp(THEN_MS + 60_000 * 49, upper_bound=100)
        for _ in range(20)
    ]
    assert answers[-1] == wanted
    assert answers == sorted(answers, key=lambda each: each is not None)


def test_a_walk_is_forgotten_where_the_log_is_cut() -> None:
    """A truncation discards the timestamps that a lookup has found. Later lookups find new records and no removed
    ones."""
    log = lying(10, LogConfig())
    assert log.times().offset_for_timestamp(THEN_MS + 60_000 * 9, upper_bound=20) is not None
    log.truncate_to(10)
    assert log.times().offset_for_timestamp(THEN_MS + 60_000 * 5, upper_bound=10) is None
    stored(log, claiming([THEN_MS + 60_000 * 5], THEN_MS))
    assert log.times().offset_for_timestamp(THEN_MS + 60_000 * 5, upper_bound=11) == (
        THEN_MS + 60_000 * 5,
        10,
        0,
    )


def test_large_segments_are_searched_block_by_block() -> None:
    """A lookup remembers the newest timestamp of each block.

    A later lookup starts at the right block of a large segment.
    """
    log = lying(40, LogConfig(segment_bytes=1 << 24), size=BLOCK_BYTES // 8)
    log.roll(NOW_MS)
    for at in (39, 0, 20, 1):
        wanted = THEN_MS + 60_000 * at
        assert log.times().offset_for_timestamp(wanted, upper_bound=80) == (wanted + 10, 2 * at, 0)
    walked = log.segments[0].walked
    assert walked is not None
    assert walked.is_settled
    assert 0 < walked.place_of(THEN_MS + 60_000 * 20) < walked.place_of(THEN_MS + 60_000 * 39)


def test_the_time_index_is_corrected_for_the_next_start() -> None:
    """A lookup corrects the time index of a finished segment.

    After a restart its records need not be read for their age.
    """
    disk = new_disk()
    config = LogConfig(index_interval_bytes=100)
    log = lying(10, config, disk)
    log.roll(NOW_MS)
    assert log.segments[0].max_timestamp_ms == THEN_MS
    assert log.times().offset_for_timestamp(THEN_MS + 60_000 * 30, upper_bound=20) is None
    log.close()
    log = open_log(disk.open_dir(ROOT), config)
    assert log.segments[0].newest_timestamp_ms(100) == THEN_MS + 60_000 * 9 + 10
    log.advance_high_watermark(20)
    assert log.times().offset_for_timestamp(THEN_MS + 60_000 * 9, upper_bound=20) == (
        THEN_MS + 60_000 * 9 + 10,
        18,
        0,
    )


def test_damage_behind_what_was_walked_is_an_error_of_the_lookup() -> None:
    """A lookup reads up to a damaged batch.

    A lookup that has to read further raises CORRUPT_MESSAGE. Retention then uses the timestamps in the headers.
    """
    disk = new_disk()
    log = lying(10, LogConfig(retention_ms=HOUR_MS), disk)
    size = log.active.size // 10
    log.roll(NOW_MS)
    disk.corrupt(f"{ROOT}/{log.segments[0].name('.log')}", 5 * size + 16)
    assert log.times().offset_for_timestamp(THEN_MS + 60_000 * 3, upper_bound=20) == (
        THEN_MS + 60_000 * 3 + 10,
        6,
        0,
    )
    log.segments[0].max_timestamp_ms = NOW_MS
    with pytest.raises(KafkaError) as caught:
        log.times().offset_for_timestamp(THEN_MS + 60_000 * 8, upper_bound=20)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    assert retain(log, THEN_MS) == 0


# --- retention in a directory


def test_records_of_now_stay_whatever_their_header_says() -> None:
    """A header claims the year 1970. The segment stays until its records have expired."""
    node = Node(LogConfig(retention_ms=HOUR_MS))
    log = node.log()
    for _ in range(3):
        stored(log, claiming([NOW_MS], 0))
        log.roll(NOW_MS)
    node.look(60_000)
    node.look(600_000)
    assert log.log_start_offset == 0
    node.look(HOUR_MS)
    node.look(600_000)
    assert log.log_start_offset == 3


def test_retention_goes_on_at_the_next_look_where_there_was_too_much_to_walk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Retention reads a limited number of bytes in each run, so that other work is not delayed.

    It continues in the next run.
    """
    monkeypatch.setattr("odradek.data_plane.log.directory.log_dir_background._WALK_BYTES", 100)
    node = Node(LogConfig(retention_ms=HOUR_MS))
    log = node.log()
    for _ in range(5):
        stored(log, claiming([NOW_MS - 2 * HOUR_MS], None))
        log.roll(NOW_MS)
    node.look(0)
    starts = []
    node.look(300_000)
    for _ in range(8):
        starts.append(log.log_start_offset)
        node.look(1000)
    assert starts[0] < starts[-1] == 5


def test_a_producers_claim_costs_a_plain_batch_nothing() -> None:
    """A batch whose header may be right is appended without reading its records."""
    log = new_log()
    data = claiming([NOW_MS, NOW_MS + 50], NOW_MS + 10)
    data[-1] ^= 0xFF
    seal(data)
    append(log, data)
    assert log.active.max_timestamp_ms == NOW_MS + 10


def test_the_lags_of_compaction_go_by_the_records() -> None:
    """Headers are wrong. `min.compaction.lag.ms` and `max.compaction.lag.ms` use the timestamps of the records."""
    disk = new_disk()
    config = LogConfig(
        cleanup_policy=("compact",), min_compaction_lag_ms=HOUR_MS, max_compaction_lag_ms=2 * HOUR_MS
    )
    log = new_log(config, disk)
    stored(log, claiming([NOW_MS - 60_000, NOW_MS - 120_000], 0))
    log.roll(NOW_MS)
    stored(log, claiming([NOW_MS], None))
    log.close()
    log = open_log(disk.open_dir(ROOT), config)
    read_timestamps(log, NOW_MS)
    view = view_of(log).segments[0]
    assert (view.max_timestamp_ms, view.first_timestamp_ms) == (NOW_MS - 60_000, NOW_MS - 60_000)


def test_the_clean_part_of_a_compacted_log_is_not_walked() -> None:
    """The cleaned part of a compacted log is not read for its records' timestamps. Only the dirty part needs them."""
    log = new_log(LogConfig(cleanup_policy=("compact",), min_compaction_lag_ms=HOUR_MS))
    for _ in range(3):
        stored(log, claiming([NOW_MS - 2 * HOUR_MS], None))
        log.roll(NOW_MS)
    clean, *dirty, _ = log.segments
    log.cleaning.advance(dirty[0].base_offset)
    read_timestamps(log, NOW_MS)
    assert clean.walked is None
    assert all(segment.walked is not None for segment in dirty)
