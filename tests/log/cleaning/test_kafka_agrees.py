"""Our log cleaner and Apache Kafka's on the same directory. Each cleans logs of the other, and Kafka's tools read them.

A Kafka server whose cleaner is off writes tables, and ends. Each test has a copy of its directory.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import attrs
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.data_plane.log.cleaning_pass import cleanable_end
from odradek.data_plane.log.directory.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    decode_offsets,
)
from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.log.dump import verify_partition
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.env.real_dirs import RealDir
from odradek.wire.record_batch import RecordBatchBuilder
from odradek.wire.topic_partition import TopicPartition as Key
from testkit.kafka_server import start_kafka
from testkit.odradek_server import launch_odradek, prepare_odradek
from testkit.processes import ServerProcess
from tests.kafka_jars import TEST_HEAP
from tests.kafka_tools import run_tool_here
from tests.log.cleaning.passes import clean
from tests.log.compacted.test_kafka_compacted import batches_of, load, loaded, rows_of
from tests.log.support import append

pytestmark = [pytest.mark.java, pytest.mark.long]

Table = dict[bytes, bytes]
DUMP_TOOL = "org.apache.kafka.tools.DumpLogSegments"
PLAIN = ("none", "gzip", "snappy", "lz4", "zstd")
MIXED = "mixed"
"""A topic with plain records, then committed and aborted transactions."""
TOPICS = (*PLAIN, MIXED)
SEGMENT_BYTES = 4000
CONFIG = LogConfig(cleanup_policy=("compact",), segment_bytes=SEGMENT_BYTES, index_interval_bytes=300)
ASLEEP = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.backoff.ms": "86400000",
    "log.cleaner.dedupe.buffer.size": "4000000",
    "log.initial.task.delay.ms": "86400000",
}
AWAKE = {**ASLEEP, "log.cleaner.backoff.ms": "500"}
COMPACT = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": str(SEGMENT_BYTES),
    "min.cleanable.dirty.ratio": "0.01",
    "index.interval.bytes": "300",
    "segment.index.bytes": "65536",
    "file.delete.delay.ms": "0",
}
CHECKPOINTS = (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
)
WAIT_SECONDS = 120


@attrs.frozen
class Written:
    """The directory of a Kafka server that has ended, and each topic's table as a committed reader sees it."""

    directory: Path
    tables: dict[str, Table]


def updates(random: Random, count: int, keys: int = 40) -> list[tuple[bytes, bytes | None]]:
    """Make updates of a few keys. Each tenth update is a tombstone."""
    return [
        (b"key-%d" % random.randrange(keys), None if at % 10 == 7 else b"value %d " % at * 3)
        for at in range(count)
    ]


def apply_to(table: Table, found: list[tuple[bytes, bytes | None]]) -> None:
    for key, value in found:
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value


def produce(producer: Producer, topic: str, found: list[tuple[bytes, bytes | None]]) -> None:
    """Produce batches of ten records."""
    for at in range(0, len(found), 10):
        for key, value in found[at : at + 10]:
            producer.produce(topic, value, key)
        producer.flush()


def write_plain(bootstrap: str, topic: str, codec: str) -> Table:
    """Produce updates by an idempotent producer. Return the resulting table."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "enable.idempotence": True,
            "linger.ms": 1000,
        }
    )
    found = updates(Random(topic), 600)
    produce(producer, topic, found)
    table: Table = {}
    apply_to(table, found)
    return table


def write_mixed(bootstrap: str) -> Table:
    """Write updates without transactions, then transactions. Every other transaction is aborted."""
    table = write_plain(bootstrap, MIXED, "none")
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t", "linger.ms": 1000})
    producer.init_transactions()
    random = Random(9)
    for number in range(6):
        found = updates(random, 50)
        producer.begin_transaction()
        produce(producer, MIXED, found)
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            apply_to(table, found)
    return table


def create(bootstrap: str, topics: Sequence[str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    created = admin.create_topics([NewTopic(topic, 1, 1, config=COMPACT) for topic in topics])
    for each in created.values():
        each.result()


@pytest.fixture(scope="module")
def written(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The directory that a Kafka server wrote, whose cleaner never ran."""
    directory = tmp_path_factory.mktemp("kafka")
    server = start_kafka(directory, settings=ASLEEP, heap=TEST_HEAP)
    try:
        create(server.bootstrap, TOPICS)
        tables = {topic: write_plain(server.bootstrap, topic, topic) for topic in PLAIN}
        tables[MIXED] = write_mixed(server.bootstrap)
        assert server.stop() in (0, 143)
    finally:
        server.kill()
    return Written(directory, tables)


@pytest.fixture
def copy(written: Written, tmp_path: Path) -> Path:
    """A copy of Kafka's directory for one test."""
    return shutil.copytree(written.directory, tmp_path / "kafka")


def log_of(log_dir: LogDir, topic: str) -> PartitionLog:
    log = log_dir.logs[Key(topic, 0)]
    log.advance_high_watermark(log.log_end_offset)
    return log


def table_of(log: PartitionLog) -> Table:
    """Return the table of a log without transactions: the last value of each key."""
    table: Table = {}
    for _, _, key, value in rows_of(log):
        assert key is not None
        apply_to(table, [(key, value)])
    return table


def check_compact(log: PartitionLog, before: list[tuple[int, int, bytes | None, bytes | None]]) -> None:
    """Check that below the first dirty offset only the latest record of each key remains, unchanged."""
    end = log.cleaning.first_dirty_offset
    latest = {key: offset for offset, _, key, _ in before if offset < end}
    assert [row for row in before if row[0] >= end or latest[row[2]] == row[0]] == rows_of(log)


@pytest.mark.parametrize("topic", PLAIN)
def test_we_clean_what_kafka_wrote(written: Written, copy: Path, topic: str) -> None:
    """We clean a log of Kafka. The latest record of every key remains at its offset, even if it is a tombstone."""
    log = loaded(copy / "data", topic, CONFIG)
    assert table_of(log) == written.tables[topic]
    before, size = rows_of(log), log.size_bytes
    report = clean(log, cleanable_end(log))
    assert report is not None
    assert log.cleaning.first_dirty_offset == log.active.base_offset > 400
    check_compact(log, before)
    assert table_of(log) == written.tables[topic]
    assert log.size_bytes < size / 2
    assert not list(verify_partition(log.directory))


def committed_rows(log: PartitionLog) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Return the records that are not part of an aborted transaction."""
    aborted = log.aborted_transactions(log.log_start_offset, log.log_end_offset)
    owners = {
        offset: header.producer_id
        for header, _ in batches_of(log)
        if header.is_transactional
        for offset in range(header.base_offset, header.next_offset)
    }
    return [
        row
        for row in rows_of(log)
        if not any(
            each.first_offset <= row[0] < each.last_offset and owners.get(row[0]) == each.producer_id
            for each in aborted
        )
    ]


def test_we_clean_the_transactions_that_kafka_wrote(written: Written, copy: Path) -> None:
    """We clean Kafka's transactions.

    Committed readers see the same table, and no record of an aborted transaction remains.
    """
    log = loaded(copy / "data", MIXED, CONFIG)
    before = committed_rows(log)
    table = {key: value for _, _, key, value in before}
    assert clean(log, cleanable_end(log)) is not None
    end = log.cleaning.first_dirty_offset
    assert end == log.active.base_offset
    after = committed_rows(log)
    assert set(after) <= set(before)
    assert {key: value for _, _, key, value in after} == table
    assert [row for row in rows_of(log) if row[0] < end] == [row for row in after if row[0] < end]
    markers = [header for header, _ in batches_of(log) if header.is_control]
    assert markers


def test_kafkas_tool_reads_what_we_cleaned(copy: Path) -> None:
    """Kafka's DumpLogSegments reads the logs that we cleaned: our records in valid batches, and correct indexes."""
    log_dir, _ = load(copy / "data", CONFIG)
    expected: list[tuple[str, str, str]] = []
    parts: list[Path] = []
    batches = 0
    for topic in TOPICS:
        log = log_of(log_dir, topic)
        assert clean(log, cleanable_end(log)) is not None
        batches += len(batches_of(log))
        expected += [
            (str(offset), (key or b"").decode(), (value or b"").decode())
            for offset, _, key, value in rows_of(log)
        ]
        log.close()
        found = sorted((copy / "data" / f"{topic}-0").iterdir())
        assert not [path for path in found if path.suffix in (".cleaned", ".swap")]
        parts += [path for path in found if path.suffix in (".log", ".index", ".timeindex", ".snapshot")]
    files = ",".join(map(str, parts))
    output = run_tool_here(DUMP_TOOL, "--deep-iteration", "--print-data-log", "--files", files)
    shown = re.findall(r"^\| offset: (\d+) .* key: (.*?)(?: payload: (.*))?$", output, re.MULTILINE)
    assert shown == expected
    assert output.count("isvalid: true") == len(re.findall(r"^baseOffset:", output, re.MULTILINE)) == batches
    verified = run_tool_here(DUMP_TOOL, "--verify-index-only", "--files", files)
    checked = run_tool_here(DUMP_TOOL, "--index-sanity-check", "--files", files)
    indexes = [path for path in parts if path.suffix in (".index", ".timeindex")]
    assert any(path.stat().st_size for path in indexes)
    for path in indexes:
        assert f"{path} passed sanity check." in checked or f"{path} is empty." in checked
    for complaint in ("mismatch", "not valid", "corrupt", "invalid", "non-consecutive"):
        assert complaint not in (output + verified + checked).lower()


def append_ours(log: PartitionLog, table: Table, codec: int) -> None:
    """Append further updates, in batches of our builder."""
    found = updates(Random(f"ours {log.topic}"), 400)
    now_ms = int(time.time() * 1000)
    for at in range(0, len(found), 8):
        builder = RecordBatchBuilder(compression_type=codec)
        for key, value in found[at : at + 8]:
            builder.append(now_ms, key, value)
        append(log, builder.build(), epoch=log.epochs.latest, now_ms=now_ms)
    log.advance_high_watermark(log.log_end_offset)
    log.flush()
    apply_to(table, found)


def cleaned_up_to(data: Path) -> dict[str, int]:
    """Return the first dirty offset of each of our topics, by the server's cleaner checkpoint."""
    path = data / CLEANER_FILE
    found = decode_offsets(path.read_bytes()) if path.exists() else {}
    return {topic: found.get(Key(topic, 0), 0) for topic in TOPICS}


def active_base(data: Path, topic: str) -> int:
    return max(int(path.stem) for path in (data / f"{topic}-0").glob("*.log"))


def wait_cleaned(server: ServerProcess, data: Path, topics: Sequence[str] = TOPICS) -> None:
    """Wait until the server's cleaner has reached the active segment of each topic."""
    deadline = time.monotonic() + WAIT_SECONDS
    while any(cleaned_up_to(data)[topic] < active_base(data, topic) for topic in topics):
        assert time.monotonic() < deadline, f"cleaned only up to {cleaned_up_to(data)}\n{server.log_tail()}"
        time.sleep(0.1)


def consumed(bootstrap: str, topic: str) -> tuple[Table, list[tuple[int, bytes, bytes | None]]]:
    """Consume from the start. Return the table and the committed records."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    table: Table = {}
    rows: list[tuple[int, bytes, bytes | None]] = []
    while True:
        message = consumer.poll(30)
        assert message is not None
        error = message.error()
        if error:
            assert error.code() == KafkaError._PARTITION_EOF, error
            break
        rows.append((message.offset(), message.key(), message.value()))
        apply_to(table, [rows[-1][1:]])
    consumer.close()
    return table, rows


def test_kafka_cleans_what_we_wrote(written: Written, copy: Path) -> None:
    """We append to Kafka's directory and clean some of its logs.

    Kafka starts on it and continues cleaning, and all tables stay equal.
    """
    data = copy / "data"
    log_dir, _ = load(data, CONFIG)
    tables = {topic: dict(table) for topic, table in written.tables.items()}
    cleaned_here = ("none", "lz4", MIXED)
    for codec, topic in enumerate(TOPICS):
        log = log_of(log_dir, topic)
        if topic in cleaned_here:
            assert clean(log, cleanable_end(log)) is not None
        append_ours(log, tables[topic], codec % 5)
        if topic == "lz4":
            assert clean(log, cleanable_end(log)) is not None
    ends = {topic: log_of(log_dir, topic).log_end_offset for topic in TOPICS}
    rows_before = {topic: rows_of(log_of(log_dir, topic)) for topic in PLAIN}
    ours = {topic: log_of(log_dir, topic).cleaning.first_dirty_offset for topic in cleaned_here}
    log_dir.close_clean(log_dir.clean_shutdown_broker_epoch or 0)
    give_back(log_dir)
    before = cleaned_up_to(data)
    assert {topic: before[topic] for topic in cleaned_here} == ours
    sizes = {topic: size_of(data, topic) for topic in TOPICS}
    server = start_kafka(copy, settings=AWAKE, heap=TEST_HEAP)
    try:
        wait_cleaned(server, data)
        for topic in TOPICS:
            table, rows = consumed(server.bootstrap, topic)
            assert table == tables[topic]
            assert len(rows) < ends[topic] / 4
            assert rows[-1][0] == ends[topic] - 1
            if topic != "lz4":
                assert size_of(data, topic) < sizes[topic]
        log_text = server.log_path.read_text()
        assert not re.findall(r"^.*(?:ERROR|uncleanable|orrupt).*$", log_text, re.MULTILINE)
    finally:
        server.kill()
    # After this kill, a start reads the segments that Kafka's cleaner left.
    again, node = load(data, CONFIG)
    assert not node.events("log.segment_dropped")
    assert not node.events("log.truncated")
    for topic in TOPICS:
        log = log_of(again, topic)
        assert log.log_end_offset == ends[topic]
        assert not list(verify_partition(log.directory))
        if topic != MIXED:
            # Kafka's passes must also have kept the latest record of each key.
            assert log.cleaning.first_dirty_offset >= log.active.base_offset
            check_compact(log, rows_before[topic])


def give_back(log_dir: LogDir) -> None:
    """Unlock a log directory as if this process had ended."""
    assert isinstance(log_dir.directory, RealDir)
    log_dir.directory.unlock()


def size_of(data: Path, topic: str) -> int:
    return sum(path.stat().st_size for path in (data / f"{topic}-0").glob("*.log"))


def give_partition(source: Path, target: Path, topic: str) -> None:
    """Replace a partition in the directory of a stopped server by the same partition of another server.

    The next start recovers it as after a crash.
    """
    old, new = source / f"{topic}-0", target / f"{topic}-0"
    identity = (new / "partition.metadata").read_bytes()
    shutil.rmtree(new)
    shutil.copytree(old, new)
    (new / "partition.metadata").write_bytes(identity)
    for name in CHECKPOINTS:
        (target / name).unlink(missing_ok=True)


def test_a_partition_goes_to_kafka_and_comes_back(copy: Path, tmp_path: Path) -> None:
    """Our node writes and cleans a partition, and Kafka cleans it further. Our node then serves it again."""
    topic, data = "zstd", copy / "data"
    ours = tmp_path / "odradek"
    properties = prepare_odradek(ours, settings=AWAKE)
    server = launch_odradek(properties)
    try:
        create(server.bootstrap, [topic])
        table = write_plain(server.bootstrap, topic, topic)
        wait_cleaned(server, ours / "data", [topic])
        found, rows = consumed(server.bootstrap, topic)
        assert found == table
        assert len(rows) < 200
        # Records that are not cleaned yet, for Kafka's cleaner.
        server.stop()
        properties.write_text(properties.read_text().replace("backoff.ms=500", "backoff.ms=86400000"))
        server = launch_odradek(properties)
        more = updates(Random(3), 300)
        produce(Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 1000}), topic, more)
        apply_to(table, more)
        before = consumed(server.bootstrap, topic)
        assert before[0] == table
        assert server.stop() == 0
        give_partition(ours / "data", data, topic)
        server = start_kafka(copy, settings=AWAKE, heap=TEST_HEAP)
        wait_cleaned(server, data, [topic])
        at_kafka = consumed(server.bootstrap, topic)
        assert at_kafka[0] == table
        assert len(at_kafka[1]) < len(before[1]) / 2
        assert set(at_kafka[1]) <= set(before[1])
        server.kill()
        give_partition(data, ours / "data", topic)
        server = launch_odradek(properties)
        assert consumed(server.bootstrap, topic) == at_kafka
        last = [(b"key-1", b"the last one")]
        produce(Producer({"bootstrap.servers": server.bootstrap}), topic, last)
        apply_to(table, last)
        assert consumed(server.bootstrap, topic)[0] == table
        assert "log.truncated" not in server.log_path.read_text()
        assert server.stop() == 0
    finally:
        server.kill()
