"""We open files that Apache Kafka 4.3 wrote, and its tools read our files."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest

from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.log.dump import dump_segment, verify_partition
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import Origin, PartitionLog
from odradek.data_plane.log.parts.producer_state import ProducerState
from odradek.env.real_dirs import open_dir
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.batches.records import Record, records
from odradek.wire.batches.transaction_markers import EndMarker, build_marker
from odradek.wire.codec import encode
from odradek.wire.messages.data_records import ProducerEntry, ProducerSnapshot
from testkit.by_hand import NOW_MS, finish
from tests.kafka_tools import run_tool_here
from tests.log.data.record import ARCHIVE, expected_records
from tests.log.support import Node, append, append_verified, batch, content, fill, open_log

END_OFFSET = 154
DUMP_TOOL = "org.apache.kafka.tools.DumpLogSegments"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def load(path: Path) -> LogDir:
    node = Node()
    log_dir = LogDir.open(
        open_dir(str(path)),
        node.log_dir.context,
        config_for=lambda topic: LogConfig(index_interval_bytes=500),
    )
    finish(log_dir.load())
    assert log_dir.offline_reason is None
    return log_dir


def parse(log: PartitionLog) -> list[Record]:
    data = content(log)
    return [
        record
        for at, header in iter_batches(data)
        if not header.is_control
        for record in records(data, at, decompressed_bytes_max=1 << 20)
    ]


@pytest.mark.parametrize("variant", ["unclean", "clean"])
def test_a_directory_of_kafka_is_read_to_the_last_record(recorded: Path, variant: str) -> None:
    """A directory of Kafka is read completely, after a clean stop or a kill.

    It has every codec, several segments, producers and markers.
    """
    log_dir = load(recorded / variant)
    assert sorted(log_dir.logs) == [("empty", 0), ("mixed", 0)]
    assert log_dir.cluster_id == "H5nlA7uKR0-zDRxvMJS5iw"
    assert (log_dir.clean_shutdown_broker_epoch is not None) == (variant == "clean")
    log = log_dir.logs["mixed", 0]
    assert (log.log_start_offset, log.log_end_offset) == (0, END_OFFSET)
    found = parse(log)
    expected = expected_records()
    assert [(r.timestamp, r.key, r.value) for r in found[: len(expected)]] == expected
    assert [r.value for r in found[len(expected) :]] == [b"commit", b"abort"]
    assert [header.record_count for _, header in iter_batches(content(log))] == [5] * 30 + [1] * 4
    for offset in range(END_OFFSET):
        (first, *_) = iter_batches(log.read_bytes(offset, 1, upper_bound=END_OFFSET, min_one=True))
        assert first[1].base_offset <= offset <= first[1].last_offset
    for offset, (timestamp, _, _) in enumerate(expected):
        assert log.times().offset_for_timestamp(timestamp, upper_bound=END_OFFSET) == (timestamp, offset, 0)
    assert len(log_dir.logs["empty", 0].topic_id.strip(b"\0")) > 0
    assert log_dir.logs["empty", 0].log_end_offset == 0


@pytest.mark.parametrize("variant", ["unclean", "clean"])
def test_kafkas_producers_go_on_here(recorded: Path, variant: str) -> None:
    """We know the last batch of each of Kafka's producers. A repeated batch is answered, and a gap in sequence numbers
    is refused."""
    log = load(recorded / variant).logs["mixed", 0]
    state = log.load_producers()
    active = {producer.producer_id: producer for producer in state.active_producers()}
    # At a start Kafka drops producers that have been silent for a day. The recording did that in its clean shutdown.
    assert {active[producer].last_sequence for producer in active} <= {14, 0}
    assert all(producer.current_txn_start_offset == -1 for producer in active.values())
    if variant == "unclean":
        assert len(active) == 12
        last = next(p for p in active.values() if p.last_sequence == 14)
        known = state.entries[last.producer_id]
        again = append(
            log, batch(5, producer_id=last.producer_id, producer_epoch=0, base_sequence=10), now_ms=NOW_MS
        )
        assert again.duplicate
        assert again.last_offset == known.last_offset


def test_files_that_kafka_finished_are_found_sound(recorded: Path) -> None:
    """Our verification finds no damage in Kafka's segments, indexes, snapshots and epochs."""
    directory = open_dir(str(recorded / "clean" / "mixed-0"))
    assert list(verify_partition(directory)) == []
    items = list(dump_segment(directory, "leader-epoch-checkpoint"))
    assert next((item["epoch"], item["start_offset"]) for item in items) == (0, 0)


def test_indexes_that_we_rebuild_are_kafkas_byte_for_byte(recorded: Path) -> None:
    """Indexes that we rebuild equal Kafka's.

    An entry precedes each batch that follows more than `index.interval.bytes`.
    """
    path = recorded / "clean" / "mixed-0"
    finished = [p for p in sorted(path.glob("*.index")) if p.stat().st_size]
    assert len(finished) >= 2
    for index in finished:
        time_index = index.with_suffix(".timeindex")
        expected = index.read_bytes(), time_index.read_bytes()
        index.unlink()
        time_index.unlink()
        log = open_log(open_dir(str(path)), LogConfig(index_interval_bytes=500))
        for segment in log.segments[:-1]:
            segment.load_index(500)
        log.abandon()
        assert (index.read_bytes(), time_index.read_bytes()) == expected


def test_snapshots_are_kafkas_message() -> None:
    """Our producer snapshot is Kafka's ProducerSnapshot message of version 1, after a version number.

    It has a checksum.
    """
    state = ProducerState()
    state.update(7, 3, 10, 104, 4, NOW_MS, True)
    state.end_transaction(8, 1, 105, NOW_MS, EndMarker(False, 5))
    data = state.encode()
    entries = [
        ProducerEntry(7, 3, 14, 104, 4, NOW_MS, -1, 100),
        ProducerEntry(8, 1, -1, -1, 0, NOW_MS, 5, -1),
    ]
    message = ProducerSnapshot(int.from_bytes(data[2:6], "big"), entries)
    assert data == b"\0\1" + encode(message, 1)


@pytest.mark.java
def test_kafkas_tool_reads_our_files(kafka_jars: Path, tmp_path: Path) -> None:
    """DumpLogSegments reads our segments with all codecs, and finds our indexes correct."""
    log = open_log(open_dir(str(tmp_path)), LogConfig(segment_bytes=3000, index_interval_bytes=200))
    for codec in range(5):
        fill(log, 6, 4, value=b"value " * 20, compression_type=codec, timestamp=NOW_MS + codec * 1000)
    for sequence in range(3):
        append(log, batch(2, producer_id=9, producer_epoch=0, base_sequence=2 * sequence))
    log.append(
        memoryview(batch(3, base_offset=log.log_end_offset, leader_epoch=2)), Origin.REPLICA, 2, NOW_MS
    )
    end_offset = log.log_end_offset
    log.close()
    logs = sorted(path.name for path in tmp_path.glob("*.log"))
    assert len(logs) > 2
    files = [
        str(path)
        for suffix in (".log", ".index", ".timeindex", ".snapshot")
        for path in sorted(tmp_path.glob(f"*{suffix}"))
    ]
    output = run_tool_here(DUMP_TOOL, "--deep-iteration", "--print-data-log", "--files", ",".join(files))
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+) ", output, re.MULTILINE)]
    assert offsets == list(range(end_offset))
    assert output.count("isvalid: true") == len(re.findall(r"^baseOffset:", output, re.MULTILINE))
    assert len(re.findall(r"^offset: \d+ position: \d+", output, re.MULTILINE)) > 5
    assert len(re.findall(r"^timestamp: \d+ offset: \d+", output, re.MULTILINE)) == 5
    assert "producerId: 9" in output
    checked = run_tool_here(DUMP_TOOL, "--index-sanity-check", "--files", ",".join(files))
    for name in (Path(file).name for file in files if file.endswith((".index", ".timeindex"))):
        assert f"{name} passed sanity check." in checked
    for complaint in ("mismatch", "not valid", "corrupt", "invalid"):
        assert complaint not in output + checked


@pytest.mark.java
def test_kafkas_tool_reads_our_transaction_indexes_and_markers(kafka_jars: Path, tmp_path: Path) -> None:
    """DumpLogSegments shows the entries of our `.txnindex` files, and our markers with the coordinator's epoch."""
    log = open_log(open_dir(str(tmp_path)), LogConfig(segment_bytes=700))
    expected = []
    for producer in (11, 12, 13, 14):
        fields = {"producer_id": producer, "producer_epoch": 1, "is_transactional": True}
        first = append_verified(log, batch(2, base_sequence=0, **fields)).base_offset
        end = build_marker(producer, 1, 5, is_commit=producer == 12, timestamp_ms=NOW_MS)
        last = append(log, end, origin=Origin.COORDINATOR).base_offset
        if producer != 12:
            stable = last + 1
            expected.append(
                f"version: 0 producerId: {producer} firstOffset: {first} lastOffset: {last} lastStableOffset: {stable}"
            )
    log.close()
    indexes = sorted(tmp_path.glob("*.txnindex"))
    assert len(indexes) > 1
    files = ",".join(str(path) for path in [*indexes, *sorted(tmp_path.glob("*.log"))])
    output = run_tool_here(DUMP_TOOL, "--print-data-log", "--files", files)
    assert [line for line in output.splitlines() if line.startswith("version: 0 producerId")] == expected
    assert output.count("endTxnMarker: ABORT coordinatorEpoch: 5") == 3
    assert output.count("endTxnMarker: COMMIT coordinatorEpoch: 5") == 1
