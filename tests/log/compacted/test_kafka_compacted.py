"""Logs that Apache Kafka's cleaner has compacted.

Every reader handles gaps, batches without records, and delete horizons.
"""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from random import Random
from typing import Any

import pytest

from odradek.data_plane.coordination.decision_log import read_latest
from odradek.data_plane.log.cleaning_pass import cleanable_end
from odradek.data_plane.log.directory.checkpoints import CLEANER_FILE, RECOVERY_POINT_FILE
from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.log.dump import dump_segment, verify_partition
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.log_types import Origin
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.env.real_dirs import open_dir
from odradek.wire.batches.batch_header import BatchHeader, iter_batches
from odradek.wire.batches.record_times import record_times
from odradek.wire.batches.records import records
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition
from testkit.by_hand import NOW_MS, finish
from tests.client.consumer.fake_group import FakeConsumer
from tests.kafka_tools import run_tool_here
from tests.log.compacted.naive_cleaner import clean, latest_values, visible
from tests.log.compacted.record import ARCHIVE, TOPICS
from tests.log.compacted.test_swap import fill_keyed
from tests.log.support import Node, append, batch, content, new_log, open_log

COMPACTED = LogConfig(cleanup_policy=("compact",), segment_bytes=1500, index_interval_bytes=200)
DELETED = LogConfig(cleanup_policy=("delete",), segment_bytes=1500, index_interval_bytes=200, retention_ms=-1)
BYTES_MAX = 1 << 24
DUMP_TOOL = "org.apache.kafka.tools.DumpLogSegments"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def expected_of(path: Path, topic: str) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Return the records that Kafka's broker served: offset, timestamp, key and value."""
    rows: list[list[Any]] = json.loads((path / "expected.json").read_text())[topic]
    return [
        (offset, time, None if key is None else key.encode(), None if value is None else value.encode())
        for offset, time, key, value in rows
    ]


def load(path: Path, config: LogConfig = COMPACTED) -> tuple[LogDir, Node]:
    node = Node()
    log_dir = LogDir.open(open_dir(str(path)), node.log_dir.context, config_for=lambda topic: config)
    finish(log_dir.load())
    assert log_dir.offline_reason is None
    return log_dir, node


def loaded(path: Path, topic: str, config: LogConfig = COMPACTED) -> PartitionLog:
    log = load(path, config)[0].logs[TopicPartition(topic, 0)]
    log.advance_high_watermark(log.log_end_offset)
    return log


def batches_of(log: PartitionLog) -> list[tuple[BatchHeader, bytes]]:
    data = content(log)
    return [(header, data[at : at + header.size]) for at, header in iter_batches(data)]


def rows_of(log: PartitionLog) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [
        (record.offset, record.timestamp, record.key, record.value)
        for header, data in batches_of(log)
        if not header.is_control
        for record in records(data, decompressed_bytes_max=BYTES_MAX)
    ]


def test_the_recorded_logs_have_what_cleaners_leave(recorded: Path) -> None:
    """The recorded logs have gaps, an empty segment, empty batches, delete horizons, and emptied transactions."""
    log_dir, _ = load(recorded)
    headers = {topic: [h for h, _ in batches_of(log_dir.logs[TopicPartition(topic, 0)])] for topic in TOPICS}
    assert any(header.has_delete_horizon for header in headers["horizon"])
    assert any(header.has_delete_horizon and header.timestamp_type for header in headers["stamped"])
    assert any(header.record_count == 0 for header in headers["gone"])
    assert any(header.is_control and header.has_delete_horizon for header in headers["mixed"])
    assert any(header.is_transactional and header.record_count == 0 for header in headers["mixed"])
    assert any(0 < header.record_count <= header.last_offset_delta for header in headers["horizon"])
    for found in headers.values():
        assert found[0].base_offset > 0
    mixed = log_dir.logs[TopicPartition("mixed", 0)]
    assert any(not segment.size for segment in mixed.segments[:-1])
    assert all(log.cleaning.first_dirty_offset > 300 for log in log_dir.logs.values())


@pytest.mark.parametrize("lost", [(), (RECOVERY_POINT_FILE,), (RECOVERY_POINT_FILE, CLEANER_FILE)])
@pytest.mark.parametrize("config", [COMPACTED, DELETED], ids=["compact", "delete"])
def test_recovery_keeps_every_segment_whatever_the_policy_is(
    recorded: Path, config: LogConfig, lost: tuple[str, ...]
) -> None:
    """A start after a crash serves the records that Kafka served, with or without the checkpoints, under any policy."""
    for name in lost:
        (recorded / name).unlink()
    log_dir, node = load(recorded, config)
    assert not node.events("log.segment_dropped")
    assert not node.events("log.truncated")
    for topic in TOPICS:
        log = log_dir.logs[TopicPartition(topic, 0)]
        assert rows_of(log) == expected_of(recorded, topic)
        names = sorted(path.name for path in (recorded / f"{topic}-0").glob("*.log"))
        assert [segment.name(".log") for segment in log.segments] == names
        assert not list(verify_partition(log.directory))
        assert not list((recorded / f"{topic}-0").glob("*.cut"))
        log.check()


@pytest.mark.parametrize("topic", TOPICS)
def test_a_fetch_in_a_gap_begins_with_the_next_batch(recorded: Path, topic: str) -> None:
    """Every offset is a valid position to fetch from. A fetch at an offset in a gap gives the next batch."""
    log = loaded(recorded, topic)
    headers = [header for header, _ in batches_of(log)]
    for bound in (log.log_end_offset, log.segments[-1].base_offset, headers[3].base_offset):
        for offset in range(bound):
            wanted = [header for header in headers if offset <= header.last_offset < bound]
            found = log.read_bytes(offset, 1, upper_bound=bound, min_one=True)
            assert [header for _, header in iter_batches(found)] == wanted[:1]
            found = log.read_bytes(offset, 1 << 20, upper_bound=bound)
            got = [header for _, header in iter_batches(found)]
            assert got == wanted[: len(got)]
            assert bool(got) == bool(wanted)
            read = log.read(offset, 1 << 20, upper_bound=bound)
            read.release()
            assert read.next_offset > offset or not wanted


@pytest.mark.parametrize("topic", TOPICS)
def test_lookups_by_time(recorded: Path, topic: str) -> None:
    """A lookup by time finds the first record of that time or later, although emptied batches keep their timestamps."""
    log = loaded(recorded, topic)
    end = log.log_end_offset
    stamped = [
        (record.timestamp, record.offset)
        for _, data in batches_of(log)
        for record in records(data, decompressed_bytes_max=BYTES_MAX)
    ]
    times = {time for time, _ in stamped} | {header.max_timestamp for header, _ in batches_of(log)}
    for asked in sorted(time + delta for time in times for delta in (-1, 0, 1)):
        first = next(((time, offset) for time, offset in stamped if time >= asked), None)
        found = log.times().offset_for_timestamp(asked, upper_bound=end)
        assert (None if found is None else found[:2]) == first
    newest = max(time for time, _ in stamped)
    found = log.times().offset_of_max_timestamp(end)
    assert found is not None
    assert found[:2] == next(each for each in stamped if each[0] == newest)


def test_the_newest_record_is_found_behind_newer_batches_without_records(recorded: Path) -> None:
    """An emptied batch keeps its newest timestamp, which no record has any more.

    The search still finds the newest record.
    """
    log = loaded(recorded, "gone")
    bound = next(header.base_offset for header, _ in batches_of(log) if header.record_count)
    assert any(header.last_offset < bound for header, _ in batches_of(log))
    assert log.times().offset_of_max_timestamp(bound) is None
    offset, timestamp, _, _ = expected_of(recorded, "gone")[0]
    assert log.times().offset_of_max_timestamp(offset + 2) == (timestamp, offset, 0)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_follower_takes_what_its_leader_compacted(recorded: Path, topic: str) -> None:
    """A follower copies a compacted log with its gaps. A crash of the follower loses no synced data."""
    leader = loaded(recorded, topic)
    for config in (COMPACTED, DELETED):
        for chunk in (1, 700, 1 << 20):
            follower = new_log(config)
            while follower.log_end_offset < leader.log_end_offset:
                data = leader.read_bytes(
                    follower.log_end_offset, chunk, upper_bound=leader.log_end_offset, min_one=True
                )
                append(follower, bytearray(data), origin=Origin.REPLICA, epoch=5)
            assert content(follower) == content(leader)
            follower.check()
            ours, theirs = follower.load_producers().entries, leader.load_producers().entries
            assert {i: entry.last_sequence for i, entry in ours.items()} == {
                i: entry.last_sequence for i, entry in theirs.items() if i in ours
            }
            follower.flush()
            follower.abandon()
            again = open_log(follower.directory, config, clean=False, recovery_point=0)
            assert content(again) == content(leader)
            assert again.log_end_offset == leader.log_end_offset


@pytest.mark.parametrize("topic", ["gone", "mixed"])
def test_a_truncation_in_a_gap_or_within_a_batch(recorded: Path, topic: str, tmp_path: Path) -> None:
    """A log is truncated in a gap or within a batch.

    It ends after the last whole batch, and the leader's records are appended again.
    """
    source = loaded(recorded, topic)
    leader = content(source)
    headers = [header for header, _ in batches_of(source)]
    for offset in range(0, source.log_end_offset, 3):
        log = new_log(COMPACTED)
        append(log, bytearray(leader), origin=Origin.REPLICA, epoch=5)
        log.flush()
        log.truncate_to(offset)
        kept = [header for header in headers if header.last_offset < offset]
        end = kept[-1].next_offset if kept else log.segments[0].base_offset
        assert log.log_end_offset == end <= offset
        size = sum(header.size for header in kept)
        assert content(log) == leader[:size]
        log.abandon()
        log = open_log(log.directory, DELETED, clean=False, recovery_point=end)
        assert content(log) == leader[:size]
        if size < len(leader):
            append(log, bytearray(leader[size:]), origin=Origin.REPLICA, epoch=5)
        assert content(log) == leader


def test_an_epoch_that_compaction_has_emptied_is_still_known_after_a_crash() -> None:
    """Compaction has removed all batches of a leader epoch.

    After a crash the log still knows where that epoch began.
    """
    for early, rolls in ((False, False), (True, False), (True, True)):
        node = Node(LogConfig(cleanup_policy=("compact",), segment_bytes=300))
        log = node.log()
        for epoch in (1, 2, 4):
            for _ in range(6):
                append(log, batch(2), epoch=epoch)
            log.flush()
            if epoch == 1:
                node.log_dir.checkpoints.write_recovery_points()
        append(log, batch(2), epoch=5)
        log.advance_high_watermark(log.log_end_offset)
        if rolls:
            log.roll(NOW_MS)
        log.flush()
        before = {epoch: log.end_offset_for_epoch(epoch) for epoch in range(6)}
        clean(log, cleanable_end(log), Random(1), groups_of=9 if rolls else 3)
        if not early:
            node.look(1)
            node.look(70_000)
        node.disk.crash("synced")
        node.start()
        log = node.log()
        assert min(record.offset for record in visible(log)) > 24
        assert {epoch: log.end_offset_for_epoch(epoch) for epoch in range(6)} == before


# --- readers of batches


@pytest.mark.parametrize("topic", TOPICS)
def test_our_consumer(recorded: Path, topic: str) -> None:
    """Our consumer reads compacted batches with correct offsets and timestamps.

    Its position passes batches without records.
    """
    log = loaded(recorded, topic)
    expected = expected_of(recorded, topic)
    consumer = FakeConsumer()
    consumer.broker.add_topic("t", 1)
    partition = consumer.broker.topics["t"].partitions[0]
    partition.batches = [(header.base_offset, data) for header, data in batches_of(log)]
    partition.end_offset = log.log_end_offset
    key = TopicPartition("t", 0)
    consumer.machine.assign_manually([key])
    found: list[Any] = []
    while consumer.run(consumer.machine.position(key, 1)) < log.log_end_offset:
        found += consumer.poll()
    assert [(each.offset, each.timestamp, each.key, each.value) for each in found] == expected


@pytest.mark.parametrize("topic", TOPICS)
def test_sparks_decoder(recorded: Path, topic: str) -> None:
    """Spark's decoder returns the rows of compacted batches, and the offset to read on from."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'odradek[spark]'")
    from odradek.spark.decode import decode_batches

    log = loaded(recorded, topic)
    expected = expected_of(recorded, topic)
    for start in (0, 25, 258, 300):
        pieces = list(
            decode_batches(
                content(log),
                topic=topic,
                partition=0,
                offset=start,
                decompressed_bytes_max=BYTES_MAX,
                rows_wanted=3,
            )
        )
        rows = [row for piece in pieces for row in piece.rows.to_pylist()]
        assert [
            (row["offset"], round(row["timestamp"].timestamp() * 1000), row["key"], row["value"])
            for row in rows
        ] == [row for row in expected if row[0] >= start]
        assert pieces[-1].next_offset == log.log_end_offset


def is_aborted(value: bytes | None) -> bool:
    """True if a record belongs to an aborted transaction. `record.produce_transactions` aborts every other
    transaction."""
    number = re.match(rb"transaction (\d+)transaction", value or b"")
    return number is not None and int(number[1]) % 2 == 1


@pytest.mark.parametrize("topic", TOPICS)
def test_the_coordinators_reader_and_the_walk_over_times(recorded: Path, topic: str) -> None:
    """A coordinator loads a shard from a compacted log.

    A walk over timestamps finds the same offsets and times as reading the records.
    """
    log = loaded(recorded, topic)
    skipped: list[str] = []
    rows = rows_of(log)
    assert read_latest(log, skipped).values == {
        key: value for _, _, key, value in rows if key is not None and not is_aborted(value)
    }
    assert skipped == []
    walked = [
        found
        for header, data in batches_of(log)
        if not header.is_control
        for found in record_times(data, records_max=1000, decompressed_bytes_max=BYTES_MAX)
    ]
    assert walked == [(offset, timestamp) for offset, timestamp, _, _ in rows]


@pytest.mark.parametrize("topic", TOPICS)
def test_log_dump(recorded: Path, topic: str) -> None:
    """`odradek log dump` shows every batch, with its delete horizon if it has one, and every record."""
    log = loaded(recorded, topic)
    items = [
        item
        for segment in log.segments
        for item in dump_segment(log.directory, segment.name(".log"), verify=True, with_records=True)
    ]
    assert not [item for item in items if item["kind"] == "damage"]
    headers = [header for header, _ in batches_of(log)]
    assert [
        (item["base_offset"], item["last_offset"], item["record_count"], item["delete_horizon"])
        for item in items
        if item["kind"] == "batch"
    ] == [
        (
            header.base_offset,
            header.last_offset,
            header.record_count,
            header.base_timestamp if header.has_delete_horizon else None,
        )
        for header in headers
    ]
    shown = [(item["offset"], item["timestamp"]) for item in items if item["kind"] == "record"]
    everything = [
        record for _, data in batches_of(log) for record in records(data, decompressed_bytes_max=BYTES_MAX)
    ]
    assert shown == [(record.offset, record.timestamp) for record in everything]


# --- who may write such batches


def test_only_a_replica_may_append_a_batch_with_gaps(recorded: Path) -> None:
    """A client's batch with gaps is refused, since its count must be its last offset delta + 1.

    A follower accepts it from its leader.
    """
    gone = batches_of(loaded(recorded, "gone"))
    odd = [data for header, data in gone if header.record_count <= header.last_offset_delta]
    assert odd
    for data in odd:
        log = new_log()
        fresh = bytearray(data)
        fresh[0:8] = bytes(8)
        with pytest.raises(KafkaError) as refused:
            append(log, bytearray(fresh))
        assert refused.value.code == ErrorCode.INVALID_RECORD
        append(log, bytearray(data), origin=Origin.REPLICA)
        assert content(log) == data


def test_we_clean_what_kafka_wrote(recorded: Path) -> None:
    """Our cleaner keeps the latest record of every key in Kafka's logs, and joins small segments."""
    log_dir, _ = load(recorded)
    for topic in ("horizon", "gone", "stamped", "changed"):
        log = log_dir.logs[TopicPartition(topic, 0)]
        log.advance_high_watermark(log.log_end_offset)
        log.flush()
        before = visible(log)
        end = cleanable_end(log)
        clean(log, end, Random(7))
        after = visible(log)
        assert latest_values(after) == latest_values(before)
        assert {(r.offset, r.timestamp, r.key, r.value) for r in after} <= {
            (r.offset, r.timestamp, r.key, r.value) for r in before
        }
        assert not list(verify_partition(log.directory))
        assert log.log_end_offset == open_log(log.directory, DELETED, clean=False).log_end_offset


@pytest.mark.java
def test_kafkas_tool_reads_what_we_cleaned(kafka_jars: Path, tmp_path: Path) -> None:
    """Kafka's DumpLogSegments reads logs that we cleaned: batches with gaps or without records, and their indexes."""
    log = open_log(open_dir(str(tmp_path)), COMPACTED)
    fill_keyed(log, Random(1), 60, keys=30)
    log.flush()
    clean(log, cleanable_end(log), Random(1))
    expected = [record.offset for record in visible(log)]
    count = len(batches_of(log))
    assert any(not header.record_count for header, _ in batches_of(log))
    log.close()
    files = [
        str(path)
        for suffix in (".log", ".index", ".timeindex", ".snapshot")
        for path in sorted(tmp_path.glob(f"*{suffix}"))
    ]
    output = run_tool_here(DUMP_TOOL, "--deep-iteration", "--print-data-log", "--files", ",".join(files))
    assert [int(found) for found in re.findall(r"^\| offset: (\d+) ", output, re.MULTILINE)] == expected
    assert output.count("isvalid: true") == len(re.findall(r"^baseOffset:", output, re.MULTILINE)) == count
    checked = run_tool_here(DUMP_TOOL, "--index-sanity-check", "--files", ",".join(files))
    for name in (Path(file).name for file in files if file.endswith((".index", ".timeindex"))):
        assert f"{name} passed sanity check." in checked or f"{name} is empty." in checked
    for complaint in ("mismatch", "not valid", "corrupt", "invalid"):
        assert complaint not in output + checked
