"""Appending and reading: offsets, refusals, rolls, ranges."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.data_plane.log.log_config import LogConfig, log_config
from odradek.data_plane.log.partition_log import FileRange, Origin, PartitionLog
from odradek.data_plane.log.segments.segment import RELATIVE_OFFSET_MAX
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.wire.batches.batch_header import iter_batches, parse_header
from odradek.wire.batches.records import records
from odradek.wire.errors import ErrorCode, KafkaError
from testkit.by_hand import NOW_MS
from tests.log.support import (
    ROOT,
    append,
    append_verified,
    batch,
    content,
    fill,
    new_disk,
    new_log,
    open_log,
    retain,
)

NEVER = (1 << 63) - 1


def refused(log: PartitionLog, data: bytearray, **fields: Any) -> ErrorCode:
    """The code with which a batch is refused; the log is as before."""
    before = log.log_end_offset, log.size_bytes
    with pytest.raises(KafkaError) as caught:
        append(log, data, **fields)
    assert (log.log_end_offset, log.size_bytes) == before
    return caught.value.code


def test_offsets_and_epochs_are_assigned_in_place() -> None:
    """Base offset and leader epoch are patched; the rest of the batch goes to disk as it came."""
    log = new_log()
    for base in (0, 3, 6):
        data = batch(3)
        sent = bytes(data)
        result = append(log, data, epoch=7)
        assert (result.base_offset, result.last_offset, result.log_append_time_ms) == (base, base + 2, -1)
        assert (result.leader_epoch, result.duplicate) == (7, False)
        stored = log.read_bytes(base, 1, upper_bound=NEVER, min_one=True)
        header = parse_header(stored)
        assert (header.base_offset, header.partition_leader_epoch) == (base, 7)
        assert (stored[8:12], stored[16:]) == (sent[8:12], sent[16:])
    assert log.log_end_offset == 9
    assert log.latest_epoch == 7


def test_a_cut_tail_behind_the_batch_is_ignored() -> None:
    """Kafka reads whole batches of a Produce request's records and leaves out what is cut."""
    log = new_log()
    data = batch(2)
    append(log, data + batch(2)[:30])
    assert log.size_bytes == len(data)


@pytest.mark.parametrize(
    ("config", "fields", "code"),
    [
        ({"max_message_bytes": 100}, {"value": b"x" * 200}, ErrorCode.MESSAGE_TOO_LARGE),
        ({"segment_bytes": 100}, {"value": b"x" * 200}, ErrorCode.RECORD_LIST_TOO_LARGE),
        ({}, {"base_offset": 5}, ErrorCode.INVALID_RECORD),
        ({}, {"is_control": True}, ErrorCode.INVALID_RECORD),
        ({}, {"timestamp": NOW_MS + 3_600_001}, ErrorCode.INVALID_TIMESTAMP),
        ({"message_timestamp_before_max_ms": 10}, {"timestamp": NOW_MS - 11}, ErrorCode.INVALID_TIMESTAMP),
        (
            {"decompressed_bytes_max": 1000},
            {"value": b"x" * 2000, "compression_type": 4},
            ErrorCode.MESSAGE_TOO_LARGE,
        ),
    ],
)
def test_what_kafka_refuses_is_refused(
    config: dict[str, Any], fields: dict[str, Any], code: ErrorCode
) -> None:
    """Each rule of a producer's batch has its error code, and leaves no trace."""
    assert refused(new_log(LogConfig(**config)), batch(**fields)) == code


def test_a_coordinators_batch_is_taken_whatever_its_size() -> None:
    """A limit that was lowered does not stop what a coordinator has promised; the batch has a segment of its own."""
    log = new_log(LogConfig(segment_bytes=200))
    for size in (300, 10, 300):
        log.append(memoryview(batch(value=b"x" * size)), Origin.COORDINATOR, 0, NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]
    assert log.log_end_offset == 3


def test_a_transactional_batch_needs_a_verified_transaction() -> None:
    """KIP-890: the one who appends it has asked the transaction's coordinator."""
    data = batch(producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    log = new_log()
    assert refused(log, bytearray(data)) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert append_verified(log, data).base_offset == 0


def test_a_flipped_bit_is_refused() -> None:
    """The checksum is always checked."""
    log = new_log()
    for position in (21, 40, -1):
        data = batch(2)
        data[position] ^= 1
        assert refused(log, data) in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
    assert refused(log, bytearray(10)) in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


def test_coordinators_may_write_control_batches() -> None:
    """Transaction markers come from this broker itself."""
    log = new_log()
    data = batch(is_control=True, is_transactional=True, producer_id=4, producer_epoch=1, base_sequence=-1)
    assert append(log, data, origin=Origin.COORDINATOR).base_offset == 0
    data[30] ^= 1
    assert refused(log, data, origin=Origin.COORDINATOR) == ErrorCode.CORRUPT_MESSAGE


def test_log_append_time_stamps_the_batch() -> None:
    """message.timestamp.type=LogAppendTime: the broker's time counts for every record, and the checksum is renewed."""
    log = new_log(LogConfig(message_timestamp_type="LogAppendTime"))
    assert append(log, batch(2, timestamp=5), now_ms=NOW_MS).log_append_time_ms == NOW_MS
    data = log.read_bytes(0, 1 << 20, upper_bound=NEVER)
    assert [record.timestamp for record in records(data, decompressed_bytes_max=1 << 20)] == [NOW_MS] * 2


# --- rolling


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_segments_roll_by_size() -> None:
    """A batch that would pass segment.bytes begins a new segment, whose name is its first offset."""
    size = len(batch(2))
    log = new_log(LogConfig(segment_bytes=2 * size))
    fill(log, 5, 2)
    assert bases(log) == [0, 4, 8]
    assert [segment.size for segment in log.segments] == [2 * size, 2 * size, size]


def test_segments_roll_by_the_time_of_records() -> None:
    """segment.ms counts from the newest record of the first batch to the newest of the one to append."""
    log = new_log(LogConfig(segment_ms=1000))
    for offset in (0, 500, 1000, 1001, 1500):
        append(log, batch(timestamp=NOW_MS + offset), now_ms=NOW_MS)
    assert bases(log) == [0, 3]


@pytest.mark.parametrize(
    ("policy", "lag_ms", "expected"),
    [
        (("compact",), 300, [0, 1, 2]),
        (("compact", "delete"), 300, [0, 1, 2]),
        (("compact",), 5000, [0, 3]),
        (("delete",), 300, [0, 3]),
        ((), 300, [0, 3]),
    ],
)
def test_a_compacted_topics_segments_roll_within_max_compaction_lag(
    policy: tuple[str, ...], lag_ms: int, expected: list[int]
) -> None:
    """The active segment is never cleaned: a record must be in a finished one by `max.compaction.lag.ms`."""
    log = new_log(LogConfig(segment_ms=1000, max_compaction_lag_ms=lag_ms, cleanup_policy=policy))
    for offset in (0, 400, 1000, 1001, 1200):
        append(log, batch(timestamp=NOW_MS + offset), now_ms=NOW_MS)
    assert bases(log) == expected


def test_segments_without_timestamps_roll_by_the_clock() -> None:
    """Without timestamps segment.ms counts from the segment's creation."""
    log = new_log(LogConfig(segment_ms=1000))
    for later in (0, 900, 1001, 1002):
        append(log, batch(timestamp=-1, step=0), now_ms=NOW_MS + later)
    assert bases(log) == [0, 2]


def test_segments_roll_when_an_index_is_full() -> None:
    """segment.index.bytes bounds both indexes; one time entry stays free for the last."""
    log = new_log(LogConfig(index_interval_bytes=0, segment_index_bytes=48))
    for at in range(10):
        append(log, batch(timestamp=NOW_MS + at))
    # Entries come before the second batch on; the time index has room for 48 / 12 - 1 of them.
    assert bases(log) == [0, 4, 8]


def test_segments_roll_before_relative_offsets_overflow() -> None:
    """An index entry's offset is an int32 relative to the segment's base."""
    log = new_log()
    append(log, batch(base_offset=0, leader_epoch=0), origin=Origin.REPLICA)
    far = RELATIVE_OFFSET_MAX + 10
    append(log, batch(base_offset=far, leader_epoch=0), origin=Origin.REPLICA)
    append(log, batch(base_offset=far + 1, leader_epoch=0), origin=Origin.REPLICA)
    assert log.log_end_offset == far + 2
    assert bases(log)[-1] == far
    assert [header.base_offset for _, header in iter_batches(content(log))] == [0, far, far + 1]


def test_rolling_an_empty_segment_does_nothing() -> None:
    """There is one segment per base offset."""
    log = new_log()
    log.roll(NOW_MS)
    assert bases(log) == [0]
    fill(log, 1)
    log.roll(NOW_MS)
    log.roll(NOW_MS)
    assert bases(log) == [0, 1]


# --- replicas


def test_a_replica_keeps_its_leaders_offsets_and_epochs() -> None:
    """Several batches in one call, gaps from compaction, segments split where they are full, a cut tail left out."""
    log = new_log(LogConfig(segment_bytes=300))
    sent = [
        batch(2, base_offset=base, leader_epoch=epoch) for base, epoch in ((0, 1), (2, 1), (10, 2), (12, 4))
    ]
    data = bytearray(b"".join(sent) + sent[0][:40])
    result = append(log, data, epoch=4, origin=Origin.REPLICA)
    assert (result.base_offset, result.last_offset) == (0, 13)
    assert content(log) == b"".join(sent)
    assert log.epochs.entries == ((1, 0), (2, 10), (4, 12))
    assert len(log.segments) > 1


def test_an_empty_replica_takes_a_batch_that_begins_below_its_start() -> None:
    """DeleteRecords may end within a batch: the leader sends it whole to a follower that begins anew at its log start.

    As Kafka does (`UnexpectedAppendOffsetException` in Partition): the files begin at the batch, the log start stays.
    """
    log = new_log()
    log.truncate_fully_and_start_at(259)
    data = batch(5, base_offset=256, leader_epoch=1) + batch(base_offset=261, leader_epoch=1)
    append(log, data, epoch=1, origin=Origin.REPLICA)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (259, 259, 262)
    assert bases(log) == [256]
    assert content(log) == data


def test_a_replica_that_has_records_takes_no_batch_that_overlaps_them() -> None:
    """Only an empty log reaches back: elsewhere an overlap means that the logs differ."""
    log = new_log()
    append(log, batch(3, base_offset=0, leader_epoch=1), epoch=1, origin=Origin.REPLICA)
    with pytest.raises(KafkaError):
        append(log, batch(5, base_offset=1, leader_epoch=1), epoch=1, origin=Origin.REPLICA)
    assert log.log_end_offset == 3


@pytest.mark.reaches("replication.batch_of_later_epoch_left_out")
def test_a_replica_takes_nothing_of_a_later_epoch_than_its_leaders() -> None:
    """A leader that was replaced meanwhile may answer with records of its successor."""
    log = new_log()
    data = batch(base_offset=0, leader_epoch=1) + batch(base_offset=1, leader_epoch=3)
    assert append(log, data, epoch=2, origin=Origin.REPLICA).last_offset == 0


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (batch(base_offset=0, leader_epoch=0), ErrorCode.UNKNOWN_SERVER_ERROR),
        (batch(base_offset=7) + batch(base_offset=7), ErrorCode.UNKNOWN_SERVER_ERROR),
        (batch(base_offset=7)[:-1], ErrorCode.CORRUPT_MESSAGE),
        (batch(base_offset=7)[:-1] + b"!", ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_a_replica_refuses_what_cannot_follow(data: bytearray, code: ErrorCode) -> None:
    """Offsets ascend, batches are whole, checksums are right; else nothing is appended."""
    log = new_log()
    fill(log, 5)
    assert refused(log, data, origin=Origin.REPLICA) == code


# --- reading


def small_log(batches: int = 40, count: int = 3, segment_bytes: int = 1500) -> PartitionLog:
    log = new_log(LogConfig(segment_bytes=segment_bytes, index_interval_bytes=300))
    fill(log, batches, count)
    return log


def test_every_offset_is_found() -> None:
    """A read begins with the batch that holds the offset, whatever was read before."""
    log = small_log()
    order = [(at * 7919) % log.log_end_offset for at in range(log.log_end_offset)]
    for offset in order:
        (found, *_) = iter_batches(log.read_bytes(offset, 1, upper_bound=NEVER, min_one=True))
        assert found[1].base_offset == offset - offset % 3


@pytest.mark.parametrize("max_bytes", [1, 130, 131, 400, 5000, 1 << 20])
def test_reading_on_gives_everything_once(max_bytes: int) -> None:
    """`next_offset` leads through the log; ranges hold whole batches and no more than was asked for."""
    log = small_log()
    offset, offsets = 0, []
    while offset < log.log_end_offset:
        found = log.read(offset, max_bytes, upper_bound=NEVER, min_one=True)
        assert found.file is not None
        data = found.file.pread(found.count, found.position)
        found.release()
        batches = [header for _, header in iter_batches(data)]
        assert sum(header.size for header in batches) == len(data)
        assert len(data) <= max_bytes or len(batches) == 1
        offsets += [header.base_offset for header in batches]
        offset = found.next_offset
        assert offset == batches[-1].next_offset
    assert offsets == list(range(0, 120, 3))


@pytest.mark.parametrize("bound", [0, 3, 10, 15, 60, 119, 120])
def test_nothing_above_the_upper_bound_is_given(bound: int) -> None:
    """A consumer sees what is below the high watermark; a batch that reaches over it waits."""
    log = small_log()
    seen = []
    offset = 0
    while (found := log.read(offset, 1 << 20, upper_bound=bound)).file is not None:
        data = found.file.pread(found.count, found.position)
        seen += [header.last_offset for _, header in iter_batches(data)]
        found.release()
        offset = found.next_offset
    assert seen == [last for last in range(2, 120, 3) if last < bound]


def test_a_batch_that_does_not_fit_is_given_only_if_one_must_be() -> None:
    """KIP-74: the first batch of a response may exceed the limits, so that a consumer gets on."""
    log = small_log()
    assert log.read_bytes(0, 10, upper_bound=NEVER) == b""
    assert len(log.read_bytes(0, 10, upper_bound=NEVER, min_one=True)) == len(batch(3))
    assert log.read_bytes(0, 0, upper_bound=NEVER) == b""


@pytest.mark.parametrize("offset", [-1, 4, 121])
def test_offsets_outside_the_log_are_out_of_range(offset: int) -> None:
    """Below the log start offset or above the log end offset; the end itself is a place to wait at."""
    log = small_log()
    log.set_log_start_offset(5)
    with pytest.raises(KafkaError) as caught:
        log.read(offset, 100, upper_bound=NEVER)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(120, 100, upper_bound=NEVER).file is None


def test_a_consumer_that_reads_on_costs_no_scan() -> None:
    """The place where a read ended is remembered, also when appends and another reader come between."""
    disk = new_disk()
    log = new_log(LogConfig(index_interval_bytes=100), disk)
    fill(log, 20, 3)
    at = log.read(0, 1000, upper_bound=NEVER)
    at.release()
    log.active.recent = None
    reads: list[tuple[str, int, int]] = []
    disk.on_operation = lambda operation, path, position, count: reads.append((operation, position, count))
    for _ in range(5):
        found = log.read(at.next_offset, 1 << 20, upper_bound=log.log_end_offset)
        found.release()
        fill(log, 1, 3)
        at = found
    assert [operation for operation, _, _ in reads if operation == "read"] == []


def test_two_followers_that_read_the_same_cost_no_scan() -> None:
    """The last appends are remembered: the second follower of a partition asks for what the first got."""
    disk = new_disk()
    log = new_log(LogConfig(index_interval_bytes=100), disk)
    fill(log, 20, 3)
    reads: list[str] = []
    offset = log.log_end_offset
    log.read(offset - 3, 1 << 20, upper_bound=NEVER).release()
    disk.on_operation = lambda operation, path, position, count: reads.append(operation)
    for _ in range(5):
        fill(log, 2, 3)
        first, second = (log.read(offset, 1 << 20, upper_bound=log.log_end_offset) for _ in range(2))
        assert (first.position, first.count, first.next_offset) == (
            second.position,
            second.count,
            second.next_offset,
        )
        first.release()
        second.release()
        offset = second.next_offset
    assert "read" not in reads
    # What a truncation takes away is remembered by nobody (what follows it has a file of its own).
    log.truncate_to(offset - 6)
    fill(log, 1, 6)
    found = log.read(offset - 6, 1 << 20, upper_bound=NEVER)
    assert (found.position, found.count, found.next_offset) == (0, log.active.size, offset)
    found.release()


def test_a_pinned_range_survives_what_happens_to_the_log() -> None:
    """A range that a response carries is read after a truncation, a roll, a retention run and a deletion."""
    log = new_log(LogConfig(segment_bytes=400, retention_bytes=0))
    fill(log, 8, 3)
    expected = log.read_bytes(0, 1 << 20, upper_bound=NEVER)
    found = log.read(0, 1 << 20, upper_bound=NEVER)
    assert found.file is not None
    file_range = FileRange(found.file, found.position, found.count)
    log.roll(NOW_MS)
    retain(log, NOW_MS)
    log.truncate_fully_and_start_at(500)
    log.abandon()
    assert file_range.file.pread(len(file_range), file_range.position) == expected
    file_range.release()


def test_damaged_bytes_are_an_error_of_the_read() -> None:
    """A range is cut at batch boundaries, so a header that is none is noticed."""
    disk = new_disk()
    log = new_log(disk=disk)
    fill(log, 10, 3)
    size = len(batch(3))
    disk.corrupt(f"{ROOT}/00000000000000000000.log", 2 * size + 16)
    with pytest.raises(KafkaError) as caught:
        log.read(20, 1 << 20, upper_bound=NEVER)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_a_closed_log_takes_and_gives_nothing() -> None:
    """A handler that still holds a log which was deleted gets a storage error."""
    log = small_log()
    log.abandon()
    log.abandon()
    for action in (lambda: append(log, batch()), lambda: log.read(0, 1, upper_bound=1)):
        with pytest.raises(KafkaError) as caught:
            action()
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR


# --- offsets and configuration


def test_the_high_watermark_stays_within_the_log() -> None:
    """It never falls, and a leader that takes it beyond the log end offset has lost count: a panic."""
    log = new_log()
    fill(log, 3)
    assert log.high_watermark == log.last_stable_offset == 3
    log.advance_high_watermark(2)
    with pytest.raises(AssertionError, match="the log ends at offset 3"):
        log.advance_high_watermark(4)
    assert log.high_watermark == 3


def test_flush_messages_asks_for_a_flush() -> None:
    """`flush.messages` counts offsets above the recovery point."""
    log = new_log(LogConfig(flush_messages=3))
    fill(log, 2)
    assert not log.needs_flush
    fill(log, 1)
    assert log.needs_flush
    log.flush()
    assert (log.needs_flush, log.recovery_point) == (False, 3)


def test_a_flush_that_ends_late_takes_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers flush one log: a leader's sync began after that of the flush cycle, and ends before it."""
    log = new_log(LogConfig(flush_messages=1))
    fill(log, 1)
    durable = log.segment_list.sync_entry

    def sync_entry() -> None:
        monkeypatch.undo()
        durable()
        fill(log, 1)
        log.flush()

    monkeypatch.setattr(type(log.segment_list), "sync_entry", lambda segments: sync_entry())
    log.flush()
    assert (log.needs_flush, log.recovery_point) == (False, 2)


def test_configuration_comes_from_kafkas_keys() -> None:
    """Effective values by topic key; `internal.segment.bytes` is not bounded from below."""
    config = log_config(
        {
            "segment.bytes": "1048576",
            "cleanup.policy": "compact,delete",
            "retention.ms": "-1",
            "min.cleanable.dirty.ratio": "0.25",
            "unclean.leader.election.enable": "true",
            "message.timestamp.type": "LogAppendTime",
            "preallocate": "false",
        },
        BrokerConfigLayers({}),
    )
    assert (config.segment_bytes, config.retention_ms, config.min_cleanable_dirty_ratio) == (
        1 << 20,
        -1,
        0.25,
    )
    assert config.cleanup_policy == ("compact", "delete")
    assert config.is_compacted
    assert config.deletes_by_retention
    assert config.uses_append_time
    assert config.unclean_leader_election_enable
    assert log_config({"internal.segment.bytes": "77"}, BrokerConfigLayers({})).segment_bytes == 77
    assert log_config({}, BrokerConfigLayers({})) == LogConfig()


def test_statistics_name_the_offsets() -> None:
    """Every long-lived object has figures."""
    log = new_log()
    fill(log, 2)
    figures = log.statistics()
    assert figures["log_end_offset"] == figures["high_watermark"] == 2
    assert figures["segments"] == 1


def test_the_log_can_be_opened_in_a_directory_that_has_foreign_files() -> None:
    """A file with a foreign name stays unread, and stays there."""
    disk = new_disk()
    directory = disk.open_dir(ROOT, create=True)
    names = ["notes.txt", "1.log", "0000000000000000000x.log", "00000000000000000000.log.bak"]
    for name in names:
        directory.open(name, create=True).append(b"mine")
    log = open_log(directory, clean=False)
    fill(log, 2)
    log.close()
    log = open_log(directory, clean=False)
    assert log.log_end_offset == 2
    assert all(directory.read_bytes(name) == b"mine" for name in names)
