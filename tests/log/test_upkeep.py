"""Retention, DeleteRecords, truncation, and lookups by time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from odradek.data_plane.log.log_config import LogConfig, log_config
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.segments.file_names import file_name
from odradek.env.real_dirs import open_dir
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.errors import ErrorCode, KafkaError
from testkit.by_hand import NOW_MS
from tests.log.support import append, batch, content, fill, new_disk, new_log, open_log, retain

SIZE = len(batch())
HOUR_MS = 3_600_000


def hourly(config: LogConfig, segments: int = 5) -> PartitionLog:
    """Make a log with a segment for each record. The first is `segments` hours old, the last one hour."""
    log = new_log(config)
    for hours in range(segments, 0, -1):
        append(log, batch(timestamp=NOW_MS - hours * HOUR_MS))
        log.roll(NOW_MS)
    log.advance_high_watermark(log.log_end_offset)
    return log


def names(log: PartitionLog, suffix: str = ".log") -> list[int]:
    return [int(name[:20]) for name in log.directory.list() if name.endswith(suffix)]


# --- retention


@pytest.mark.parametrize(
    ("hours", "kept"), [(10, [0, 1, 2, 3, 4, 5]), (4, [1, 2, 3, 4, 5]), (2, [3, 4, 5]), (0, [5])]
)
def test_old_segments_go_by_the_time_of_their_newest_record(hours: int, kept: list[int]) -> None:
    """retention.ms removes old segments by their newest record. The active segment is empty here, and stays."""
    log = hourly(LogConfig(retention_ms=hours * HOUR_MS))
    assert retain(log, NOW_MS) == 6 - len(kept)
    assert names(log) == kept
    assert log.log_start_offset == kept[0]
    assert log.log_end_offset == 5


def test_when_everything_has_expired_the_end_offset_stays() -> None:
    """All records have expired, even those of the active segment.

    A new segment is rolled, so that the end offset is kept.
    """
    disk = new_disk()
    log = new_log(LogConfig(retention_ms=HOUR_MS), disk)
    fill(log, 3, timestamp=NOW_MS - 2 * HOUR_MS)
    assert retain(log, NOW_MS) == 1
    assert (names(log), log.log_start_offset, log.log_end_offset) == ([3], 3, 3)
    disk.crash("synced")
    assert open_log(disk.open_dir("disk"), clean=False).log_end_offset == 3


def test_segments_without_timestamps_age_by_their_file() -> None:
    """A segment without timestamps expires by the modification time of its file, as in Kafka."""
    log = new_log(LogConfig(retention_ms=HOUR_MS))
    fill(log, 1, timestamp=-1, step=0)
    assert retain(log, NOW_MS + HOUR_MS) == 0
    assert retain(log, NOW_MS + HOUR_MS + 1) == 1


@pytest.mark.parametrize(("limit", "kept"), [(5, 6), (4, 5), (3.5, 5), (1, 2), (0, 1)])
def test_the_oldest_segments_go_until_the_size_fits(limit: float, kept: int) -> None:
    """retention.bytes removes the oldest segments while the log stays at least as large as this limit."""
    log = hourly(LogConfig(retention_ms=-1, retention_bytes=int(limit * SIZE)))
    retain(log, NOW_MS)
    assert len(log.segments) == kept


def test_only_committed_records_go() -> None:
    """A segment with records above the high watermark is not removed, whatever its age."""
    log = hourly(LogConfig(retention_ms=0))
    log.high_watermark = 2
    assert retain(log, NOW_MS) == 2


def test_compacted_topics_are_not_deleted_by_age() -> None:
    """With cleanup.policy=compact, only segments below the log start (after DeleteRecords) are removed."""
    log = hourly(LogConfig(retention_ms=0, retention_bytes=0, cleanup_policy=("compact",)))
    assert retain(log, NOW_MS) == 0
    log.set_log_start_offset(2)
    assert retain(log, NOW_MS) == 2
    assert names(log) == [2, 3, 4, 5]


def test_an_empty_policy_keeps_everything() -> None:
    """An empty `cleanup.policy` is valid in Kafka 4.3. Segments stay at any age and size, and records need no key."""
    config = log_config(
        {"cleanup.policy": "", "retention.ms": "0", "retention.bytes": "0"}, BrokerConfigLayers({})
    )
    assert (config.is_compacted, config.deletes_by_retention, config.checks_records) == (False, False, False)
    log = hourly(config)
    assert retain(log, NOW_MS) == 0
    log.set_log_start_offset(2)
    assert retain(log, NOW_MS) == 2


def test_both_policies_delete_by_age_too() -> None:
    """With compact,delete, retention also removes old segments."""
    log = hourly(LogConfig(retention_ms=4 * HOUR_MS, cleanup_policy=("compact", "delete")))
    assert retain(log, NOW_MS) == 1


def test_delete_records_moves_the_start_and_frees_whole_segments() -> None:
    """DeleteRecords raises the log start, up to the high watermark.

    Readers no longer see older records, and whole segments are removed.
    """
    log = new_log(LogConfig(segment_bytes=2 * SIZE))
    fill(log, 7)
    log.high_watermark = 5
    with pytest.raises(KafkaError) as caught:
        log.set_log_start_offset(6)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    log.set_log_start_offset(3)
    log.set_log_start_offset(1)
    assert log.log_start_offset == 3
    assert log.epochs.entries == ((0, 3),)
    assert retain(log, NOW_MS) == 1
    assert names(log) == [2, 4, 6]
    assert [h.base_offset for _, h in iter_batches(log.read_bytes(3, 1 << 20, upper_bound=7))] == [3]


# --- truncation


def test_truncation_removes_what_is_behind() -> None:
    """A truncation at any offset sets contents, end, high watermark and epochs. Later appends continue there."""
    for offset in range(13):
        log = new_log(LogConfig(segment_bytes=5 * SIZE, index_interval_bytes=100))
        for at in range(12):
            append(log, batch(timestamp=NOW_MS + at), epoch=at // 5)
        before = [bytes(content(log)[at : at + header.size]) for at, header in iter_batches(content(log))]
        log.advance_high_watermark(12)
        log.truncate_to(offset)
        assert log.log_end_offset == log.high_watermark == offset
        assert content(log) == b"".join(before[:offset])
        assert log.epochs.entries == tuple((epoch, epoch * 5) for epoch in range(-(-offset // 5)))
        assert append(log, batch(timestamp=NOW_MS + 99), epoch=9).base_offset == offset
        assert log.times().offset_for_timestamp(NOW_MS + 50, upper_bound=99) == (NOW_MS + 99, offset, 9)
        log.close()
        assert open_log(log.directory, clean=True).log_end_offset == offset + 1


def test_a_cut_within_a_batch_drops_the_whole_batch() -> None:
    """A truncation within a batch removes the whole batch, since batches are never split. The leader sends it again."""
    log = new_log()
    fill(log, 3, 4)
    log.truncate_to(6)
    assert log.log_end_offset == 4


def test_truncation_undoes_what_producers_appended() -> None:
    """A truncation resets the state of producers to the new end. Their sequence numbers continue from there."""
    log = new_log(LogConfig(segment_bytes=1000))
    for at in range(12):
        append(log, batch(2, producer_id=at % 2, producer_epoch=0, base_sequence=at // 2 * 2))
    log.truncate_to(15)
    state = log.load_producers()
    assert (state.entries[0].last_sequence, state.entries[1].last_sequence) == (7, 5)
    assert append(log, batch(2, producer_id=1, producer_epoch=0, base_sequence=6)).base_offset == 14
    log.truncate_to(0)
    assert log.load_producers().entries == {}


def test_truncation_before_the_log_empties_it() -> None:
    """A truncation below the log start empties the log, which then begins at that offset."""
    log = hourly(LogConfig(retention_ms=3 * HOUR_MS))
    retain(log, NOW_MS)
    log.truncate_to(1)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (1, 1, 1)
    assert names(log) == [1]
    assert log.epochs.entries == ()


def test_a_log_can_start_over_anywhere() -> None:
    """A log can begin anew at any offset, as for a follower whose log ends below its leader's start."""
    log = hourly(LogConfig())
    log.truncate_fully_and_start_at(1000)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (1000, 1000, 0)
    assert append(log, batch()).base_offset == 1000
    log.close()
    assert open_log(log.directory, clean=True).log_end_offset == 1001


def test_the_recovery_point_falls_with_a_truncation() -> None:
    """A truncation comes during a flush, and lowers the recovery point.

    The end of the flush does not raise it again.
    """
    disk = new_disk()
    log = new_log(disk=disk)
    fill(log, 4)
    log.flush()
    fill(log, 1)

    def overtake(operation: str, path: str, position: int, count: int) -> None:
        if operation == "sync":
            disk.on_operation = None
            log.truncate_to(3)
            fill(log, 4)

    disk.on_operation = overtake
    log.flush()
    assert disk.on_operation is None
    assert (log.log_end_offset, log.recovery_point) == (7, 3)
    log.flush()
    assert log.recovery_point == 7


# --- lookups by time


def test_the_first_record_that_is_not_older() -> None:
    """The lookup finds the first record that is not older than the given time, among unordered timestamps and in
    compressed batches."""
    log = new_log(LogConfig(segment_bytes=900, index_interval_bytes=100))
    timestamps = [5, 9, 2, 30, 12, 11, 40, 40, 8, 60, 1, 70]
    for at in range(0, 12, 2):
        first, second = timestamps[at : at + 2]
        append(log, batch(2, timestamp=first, step=second - first, compression_type=at % 5), epoch=at)
    for bound in (0, 3, 4, 12):
        for asked in range(75):
            expected = next(
                (
                    (timestamp, offset, offset // 2 * 2)
                    for offset, timestamp in enumerate(timestamps[:bound])
                    if timestamp >= asked
                ),
                None,
            )
            assert log.times().offset_for_timestamp(asked, upper_bound=bound) == expected
        newest = max(timestamps[:bound], default=None)
        found = log.times().offset_of_max_timestamp(bound)
        assert (found and found[:2]) == (newest and (newest, timestamps.index(newest)))


def test_deleted_records_are_not_found_by_time() -> None:
    """A lookup by time starts at the log start offset, and finds no deleted record."""
    log = new_log()
    fill(log, 3, 2)
    log.set_log_start_offset(3)
    assert log.times().offset_for_timestamp(0, upper_bound=6) == (NOW_MS + 1, 3, 0)


def test_a_lookup_that_meets_damage_says_so() -> None:
    """A lookup by time meets a damaged batch. It raises CORRUPT_MESSAGE."""
    disk = new_disk()
    log = new_log(disk=disk)
    fill(log, 3, 2)
    disk.corrupt("disk/" + file_name(0, ".log"), 100)
    with pytest.raises(KafkaError) as caught:
        log.times().offset_for_timestamp(NOW_MS, upper_bound=6)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


# --- memory


def test_idle_segments_give_back_index_and_descriptor(tmp_path: Path) -> None:
    """A segment is not used.

    The first run of the background work drops its index, the second closes its file. Both come back when needed.
    """
    log = open_log(open_dir(str(tmp_path)), LogConfig(segment_bytes=1000, index_interval_bytes=100))
    fill(log, 30)
    first = log.segments[0]

    def is_open() -> bool:
        return any(
            os.path.realpath(f"/proc/self/fd/{fd}") == first.file.path for fd in os.listdir("/proc/self/fd")
        )

    first.grow_idle()
    assert (first.index is None, is_open()) == (False, True)
    found = log.read(0, 1 << 20, upper_bound=30)
    assert found.file is not None
    first.grow_idle()
    first.grow_idle()
    assert (first.index is None, is_open()) == (True, True), (
        "the file was closed although a read has pinned it"
    )
    assert len(found.file.pread(found.count, found.position)) == found.count
    found.release()
    first.grow_idle()
    assert not is_open()
    assert len(log.read_bytes(5, 1 << 20, upper_bound=30)) > 0
    assert (first.index is not None, is_open()) == (True, True)
    log.active.grow_idle()
    log.active.grow_idle()
    assert log.active.index is not None or log.active.bytes_since_index == log.active.size
