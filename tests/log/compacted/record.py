"""Records a directory that Apache Kafka 4.3's cleaner has compacted: `kafka-compacted.tar.xz`.

    .venv/bin/python -m tests.log.compacted.record

A node is killed after its cleaner has cleaned every topic. Segments are small and keys are few. There are idempotent
producers, tombstones, and every codec. The topics are:

* `horizon`: tombstones are still kept, so their batches have a delete horizon;
* `gone`: tombstones were removed, and there are emptied batches, empty segments, and gaps between segments;
* `stamped`: timestamps are of the type LogAppendTime;
* `changed`: as `gone`, but the policy was `delete` when the node died;
* `mixed`: of committed and aborted transactions, compaction has left only some markers and offsets.

`expected.json` has the records that Kafka's own broker served from each topic, as [offset, timestamp, key, value].
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from testkit.kafka_server import start_kafka

ARCHIVE = Path(__file__).with_name("kafka-compacted.tar.xz")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ROUNDS = 12
HEAP = ("-Xmx512m", "-XX:+UseSerialGC")
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.flush.offset.checkpoint.interval.ms": "1000",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.00001",
    "log.initial.task.delay.ms": "100",
    "log.cleaner.dedupe.buffer.size": "4000000",
}
COMPACT = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "1500",
    "min.cleanable.dirty.ratio": "0.00001",
    "index.interval.bytes": "200",
    "segment.index.bytes": "65536",
    "file.delete.delay.ms": "0",
}
TOPICS = {
    "horizon": {**COMPACT, "delete.retention.ms": "86400000"},
    "gone": {**COMPACT, "delete.retention.ms": "1"},
    "stamped": {**COMPACT, "delete.retention.ms": "86400000", "message.timestamp.type": "LogAppendTime"},
    "changed": {**COMPACT, "delete.retention.ms": "1"},
    "mixed": {**COMPACT, "delete.retention.ms": "1"},
}


def produce_round(bootstrap: str, topic: str, number: int) -> None:
    """Produce some batches by a new idempotent producer: repeated keys, a single key, and a tombstone."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": CODECS[number % len(CODECS)],
            "enable.idempotence": True,
            "linger.ms": 20,
        }
    )
    for at in range(8):
        for key in range(3):
            producer.produce(topic, b"round %d, %d " % (number, at) * 3, b"key-%d" % ((at + key) % 5))
        producer.flush()
    producer.produce(topic, b"only here", b"once-%d" % number)
    producer.produce(topic, None, b"once-%d" % (number - 2))
    producer.flush()


def produce_transactions(bootstrap: str, topic: str, number: int) -> None:
    """Produce transactions for the same few keys, which are committed and aborted in turn."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{number % 3}"})
    producer.init_transactions()
    producer.begin_transaction()
    for key in range(4):
        producer.produce(topic, b"transaction %d" % number * 4, b"key-%d" % key)
    producer.flush()
    if number % 2:
        producer.abort_transaction()
    else:
        producer.commit_transaction()


def cleaned_up_to(data: Path) -> dict[str, int]:
    """Return the offsets up to which Kafka's cleaner has cleaned our topics."""
    path = data / "cleaner-offset-checkpoint"
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    fields = [line.split() for line in lines]
    return {topic: int(offset) for topic, _, offset in fields if topic in TOPICS}


def active_base(data: Path, topic: str) -> int:
    return max(int(path.stem) for path in (data / f"{topic}-0").glob("*.log"))


def wait_cleaned(data: Path) -> None:
    """Wait until all but the active segment of each topic has been cleaned."""
    deadline = time.monotonic() + 120
    while any(cleaned_up_to(data).get(topic, 0) < active_base(data, topic) for topic in TOPICS):
        if time.monotonic() > deadline:
            raise SystemExit(
                f"Kafka's cleaner has not reached all active segments, only {cleaned_up_to(data)}"
            )
        time.sleep(0.2)


def read_all(bootstrap: str) -> dict[str, list[Any]]:
    """Read all records that the broker serves, even those of aborted transactions."""
    found: dict[str, list[Any]] = {}
    for topic in TOPICS:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "recorder",
                "enable.auto.commit": False,
                "isolation.level": "read_uncommitted",
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        rows: list[Any] = []
        while True:
            message = consumer.poll(10)
            if message is None or message.error():
                break
            key, value = message.key(), message.value()
            rows.append(
                [
                    message.offset(),
                    message.timestamp()[1],
                    None if key is None else key.decode(),
                    None if value is None else value.decode(),
                ]
            )
        consumer.close()
        found[topic] = rows
    return found


def main() -> None:
    """Run Kafka and write the archive."""
    directory = Path(tempfile.mkdtemp(prefix="apache-kafka-"))
    data = directory / "data"
    server = start_kafka(directory, settings=SETTINGS, heap=HEAP)
    try:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        created = admin.create_topics(
            [NewTopic(name, 1, 1, config=config) for name, config in TOPICS.items()]
        )
        for each in created.values():
            each.result()
        for number in range(ROUNDS):
            for topic in TOPICS:
                produce_round(server.bootstrap, topic, number)
            produce_transactions(server.bootstrap, "mixed", number)
            if number % 4 == 3:
                wait_cleaned(data)
                time.sleep(1)
        wait_cleaned(data)
        resource = ConfigResource(ResourceType.TOPIC, "changed")
        resource.add_incremental_config(
            ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
        )
        for altered in admin.incremental_alter_configs([resource]).values():
            altered.result()
        time.sleep(2)
        expected = read_all(server.bootstrap)
        server.kill()
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            files = [
                path for path in sorted(data.iterdir()) if path.is_file() and path.suffix != ".checkpoint"
            ]
            for topic in TOPICS:
                files += sorted(path for path in data.glob(f"{topic}-0/*"))
            for path in files:
                if path.name != ".lock":
                    _add(archive, str(path.relative_to(data)), path.read_bytes())
            _add(archive, "expected.json", json.dumps(expected).encode())
    finally:
        server.kill()
        shutil.rmtree(directory)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    main()
