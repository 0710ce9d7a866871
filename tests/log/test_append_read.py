"""Appending and reading: offsets, refusals, rolls and ranges."""

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
    """Return the code with which a batch is refused. Check that the log did not change."""
    before = log.log_end_offset, log.size_bytes
    with pytest.raises(KafkaError) as caught:
        append(log, data, **fields)
    assert (log.log_end_offset, log.size_bytes) == before
    return caught.value.code


def test_offsets_and_epochs_are_assigned_in_place() -> None:
    """An append sets base offset and leader epoch in the batch. The other bytes are stored as they came."""
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
    """A partial batch after a whole one is ignored, as Kafka ignores it in the records of Produce."""
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
    """A producer's batch that breaks a rule of Kafka gets Kafka's error code, and the log does not change."""
    assert refused(new_log(LogConfig(**config)), batch(**fields)) == code


def test_a_coordinators_batch_is_taken_whatever_its_size() -> None:
    """A coordinator's batch is accepted in any size, in its own segment if need be.

    A lowered limit must not block a coordinator.
    """
    log = new_log(LogConfig(segment_bytes=200))
    for size in (300, 10, 300):
        log.append(memoryview(batch(value=b"x" * size)), Origin.COORDINATOR, 0, NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]
    assert log.log_end_offset == 3


def test_a_transactional_batch_needs_a_verified_transaction() -> None:
    """A transactional batch is accepted only after its transaction was verified at the coordinator (KIP-890)."""
    data = batch(producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    log = new_log()
    assert refused(log, bytearray(data)) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert append_verified(log, data).base_offset == 0


def test_a_flipped_bit_is_refused() -> None:
    """A batch with a flipped bit is refused, since the checksum is always verified."""
    log = new_log()
    for position in (21, 40, -1):
        data = batch(2)
        data[position] ^= 1
        assert refused(log, data) in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
    assert refused(log, bytearray(10)) in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


def test_coordinators_may_write_control_batches() -> None:
    """Control batches are accepted from the coordinator, which writes transaction markers."""
    log = new_log()
    data = batch(is_control=True, is_transactional=True, producer_id=4, producer_epoch=1, base_sequence=-1)
    assert append(log, data, origin=Origin.COORDINATOR).base_offset == 0
    data[30] ^= 1
    assert refused(log, data, origin=Origin.COORDINATOR) == ErrorCode.CORRUPT_MESSAGE


def test_log_append_time_stamps_the_batch() -> None:
    """With message.timestamp.type=LogAppendTime, all records get the broker's time and the batch a new checksum."""
    log = new_log(LogConfig(message_timestamp_type="LogAppendTime"))
    assert append(log, batch(2, timestamp=5), now_ms=NOW_MS).log_append_time_ms == NOW_MS
    data = log.read_bytes(0, 1 << 20, upper_bound=NEVER)
    assert [record.timestamp for record in records(data, decompressed_bytes_max=1 << 20)] == [NOW_MS] * 2


# --- rolling


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_segments_roll_by_size() -> None:
    """A batch that would exceed segment.bytes begins a new segment, which is named by its first offset."""
    size = len(batch(2))
    log = new_log(LogConfig(segment_bytes=2 * size))
    fill(log, 5, 2)
    assert bases(log) == [0, 4, 8]
    assert [segment.size for segment in log.segments] == [2 * size, 2 * size, size]


def test_segments_roll_by_the_time_of_records() -> None:
    """segment.ms is measured from the newest timestamp of the segment's first batch to that of the new batch."""
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
    """A compacted topic's segment rolls by `max.compaction.lag.ms`, since only finished segments are cleaned."""
    log = new_log(LogConfig(segment_ms=1000, max_compaction_lag_ms=lag_ms, cleanup_policy=policy))
    for offset in (0, 400, 1000, 1001, 1200):
        append(log, batch(timestamp=NOW_MS + offset), now_ms=NOW_MS)
    assert bases(log) == expected


def test_segments_without_timestamps_roll_by_the_clock() -> None:
    """If records have no timestamps, segment.ms is measured from the creation of the segment."""
    log = new_log(LogConfig(segment_ms=1000))
    for later in (0, 900, 1001, 1002):
        append(log, batch(timestamp=-1, step=0), now_ms=NOW_MS + later)
    assert bases(log) == [0, 2]


def test_segments_roll_when_an_index_is_full() -> None:
    """A segment rolls when an index reaches segment.index.bytes. The time index keeps room for its last entry."""
    log = new_log(LogConfig(index_interval_bytes=0, segment_index_bytes=48))
    for at in range(10):
        append(log, batch(timestamp=NOW_MS + at))
    # The first batch gets no index entry. The time index has room for 48 / 12 - 1 entries.
    assert bases(log) == [0, 4, 8]


def test_segments_roll_before_relative_offsets_overflow() -> None:
    """A segment rolls before an offset relative to its base exceeds 32 bits, which index entries use."""
    log = new_log()
    append(log, batch(base_offset=0, leader_epoch=0), origin=Origin.REPLICA)
    far = RELATIVE_OFFSET_MAX + 10
    append(log, batch(base_offset=far, leader_epoch=0), origin=Origin.REPLICA)
    append(log, batch(base_offset=far + 1, leader_epoch=0), origin=Origin.REPLICA)
    assert log.log_end_offset == far + 2
    assert bases(log)[-1] == far
    assert [header.base_offset for _, header in iter_batches(content(log))] == [0, far, far + 1]


def test_rolling_an_empty_segment_does_nothing() -> None:
    """Rolling an empty segment does nothing, as the new one would have the same base offset."""
    log = new_log()
    log.roll(NOW_MS)
    assert bases(log) == [0]
    fill(log, 1)
    log.roll(NOW_MS)
    log.roll(NOW_MS)
    assert bases(log) == [0, 1]


# --- replicas


def test_a_replica_keeps_its_leaders_offsets_and_epochs() -> None:
    """A replica appends several of its leader's batches in one call, with gaps that compaction has left.

    It rolls between the batches, and ignores a partial last batch.
    """
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
    """An empty log starts within the leader's first batch, after DeleteRecords. The log start stays there.

    The whole batch is appended, so the files begin below the log start. Kafka does the same
    (`UnexpectedAppendOffsetException` in Partition).
    """
    log = new_log()
    log.truncate_fully_and_start_at(259)
    data = batch(5, base_offset=256, leader_epoch=1) + batch(base_offset=261, leader_epoch=1)
    append(log, data, epoch=1, origin=Origin.REPLICA)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (259, 259, 262)
    assert bases(log) == [256]
    assert content(log) == data


def test_a_replica_that_has_records_takes_no_batch_that_overlaps_them() -> None:
    """A replica gets a batch that overlaps its records. The batch is refused, since the two logs must differ.

    Only a replica with an empty log accepts a batch that begins below its log end.
    """
    log = new_log()
    append(log, batch(3, base_offset=0, leader_epoch=1), epoch=1, origin=Origin.REPLICA)
    with pytest.raises(KafkaError):
        append(log, batch(5, base_offset=1, leader_epoch=1), epoch=1, origin=Origin.REPLICA)
    assert log.log_end_offset == 3


@pytest.mark.reaches("replication.batch_of_later_epoch_left_out")
def test_a_replica_takes_nothing_of_a_later_epoch_than_its_leaders() -> None:
    """A leader that was replaced answers with records of its successor's epoch. The replica leaves these records
    out."""
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
    """A replica refuses batches with descending offsets, a wrong checksum, or an incomplete batch.

    Nothing is appended.
    """
    log = new_log()
    fill(log, 5)
    assert refused(log, data, origin=Origin.REPLICA) == code


# --- reading


def small_log(batches: int = 40, count: int = 3, segment_bytes: int = 1500) -> PartitionLog:
    log = new_log(LogConfig(segment_bytes=segment_bytes, index_interval_bytes=300))
    fill(log, batches, count)
    return log


def test_every_offset_is_found() -> None:
    """A read at any offset begins with the batch that contains it, in any order of reads."""
    log = small_log()
    order = [(at * 7919) % log.log_end_offset for at in range(log.log_end_offset)]
    for offset in order:
        (found, *_) = iter_batches(log.read_bytes(offset, 1, upper_bound=NEVER, min_one=True))
        assert found[1].base_offset == offset - offset % 3


@pytest.mark.parametrize("max_bytes", [1, 130, 131, 400, 5000, 1 << 20])
def test_reading_on_gives_everything_once(max_bytes: int) -> None:
    """Reading on from `next_offset` returns each batch once.

    A read returns the whole batches that its byte limit allows, and at least one.
    """
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
    """A read returns only whole batches below the upper bound, which is the high watermark for consumers."""
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
    """A batch above the byte limit is returned only with `min_one`, so that a consumer can proceed (KIP-74)."""
    log = small_log()
    assert log.read_bytes(0, 10, upper_bound=NEVER) == b""
    assert len(log.read_bytes(0, 10, upper_bound=NEVER, min_one=True)) == len(batch(3))
    assert log.read_bytes(0, 0, upper_bound=NEVER) == b""


@pytest.mark.parametrize("offset", [-1, 4, 121])
def test_offsets_outside_the_log_are_out_of_range(offset: int) -> None:
    """An offset below the log start or above the log end is out of range. The log end itself is valid."""
    log = small_log()
    log.set_log_start_offset(5)
    with pytest.raises(KafkaError) as caught:
        log.read(offset, 100, upper_bound=NEVER)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(120, 100, upper_bound=NEVER).file is None


def test_a_consumer_that_reads_on_costs_no_scan() -> None:
    """A read that continues where the last one ended needs no scan of the file, even after appends and other reads."""
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
    """Two followers read the same new batches.

    The second read needs no scan, since the log remembers where it has placed the last batches.
    """
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
    # A truncation forgets the places of removed batches. Later batches are in another file.
    log.truncate_to(offset - 6)
    fill(log, 1, 6)
    found = log.read(offset - 6, 1 << 20, upper_bound=NEVER)
    assert (found.position, found.count, found.next_offset) == (0, log.active.size, offset)
    found.release()


def test_a_pinned_range_survives_what_happens_to_the_log() -> None:
    """A range of a response is pinned. It is readable after a truncation, a roll, retention and a deletion."""
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
    """A header of a batch is damaged. A read over it raises CORRUPT_MESSAGE, since ranges end at batch boundaries."""
    disk = new_disk()
    log = new_log(disk=disk)
    fill(log, 10, 3)
    size = len(batch(3))
    disk.corrupt(f"{ROOT}/00000000000000000000.log", 2 * size + 16)
    with pytest.raises(KafkaError) as caught:
        log.read(20, 1 << 20, upper_bound=NEVER)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_a_closed_log_takes_and_gives_nothing() -> None:
    """A closed log refuses appends and reads with KAFKA_STORAGE_ERROR, for a handler that still has it."""
    log = small_log()
    log.abandon()
    log.abandon()
    for action in (lambda: append(log, batch()), lambda: log.read(0, 1, upper_bound=1)):
        with pytest.raises(KafkaError) as caught:
            action()
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR


# --- offsets and configuration


def test_the_high_watermark_stays_within_the_log() -> None:
    """The high watermark never falls. A leader that raises it above the log end has a bug (AssertionError)."""
    log = new_log()
    fill(log, 3)
    assert log.high_watermark == log.last_stable_offset == 3
    log.advance_high_watermark(2)
    with pytest.raises(AssertionError, match="the log ends at offset 3"):
        log.advance_high_watermark(4)
    assert log.high_watermark == 3


def test_flush_messages_asks_for_a_flush() -> None:
    """A log needs a flush when `flush.messages` offsets are above its recovery point."""
    log = new_log(LogConfig(flush_messages=3))
    fill(log, 2)
    assert not log.needs_flush
    fill(log, 1)
    assert log.needs_flush
    log.flush()
    assert (log.needs_flush, log.recovery_point) == (False, 3)


def test_a_flush_that_ends_late_takes_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two flushes of one log overlap, and the first to begin is the last to end. The recovery point does not fall."""
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
    """A topic's keys give the log's configuration. `internal.segment.bytes` has no lower limit."""
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
    """The statistics of a log have its offsets and its number of segments."""
    log = new_log()
    fill(log, 2)
    figures = log.statistics()
    assert figures["log_end_offset"] == figures["high_watermark"] == 2
    assert figures["segments"] == 1


def test_the_log_can_be_opened_in_a_directory_that_has_foreign_files() -> None:
    """A directory has files with foreign names. The log opens, and the files are neither read nor removed."""
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
