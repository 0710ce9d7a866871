"""Records a directory that Apache Kafka 4.3 has written: `kafka-4.3.0.tar.xz`, read by test_kafka_files.py.

    .venv/bin/python -m tests.log.data.record

`unclean/` is the directory of a killed node. `clean/` is this directory after another start and a clean stop. Topic
`mixed` has batches of every codec from idempotent producers, and one committed and one aborted transaction, in several
segments. Topic `empty` has no records.
"""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from testkit.kafka_server import start_kafka

ARCHIVE = Path(__file__).with_name("kafka-4.3.0.tar.xz")
BASE_TIMESTAMP = 1_700_000_000_000
SEGMENT_STEP_MS = 120_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BATCHES = 3
RECORDS = 5
HEAP = ("-Xmx512m", "-XX:+UseSerialGC")
SMALL_NODE = {"transaction.state.log.num.partitions": "1", "log.flush.offset.checkpoint.interval.ms": "1000"}


def expected_records() -> list[tuple[int, bytes, bytes]]:
    """Return (timestamp, key, value) of the records in topic `mixed` that are in no transaction, in order."""
    found = []
    for segment in range(2):
        for _ in CODECS:
            for _ in range(BATCHES):
                for _ in range(RECORDS):
                    number = len(found)
                    timestamp = BASE_TIMESTAMP + segment * SEGMENT_STEP_MS + number * 10
                    found.append((timestamp, b"key-%d" % number, b"value-%d " % number * 6))
    return found


def produce(bootstrap: str) -> None:
    """Write the records of the topics."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"segment.ms": "60000", "index.interval.bytes": "500", "segment.index.bytes": "65536"}
    topics = [NewTopic("mixed", 1, 1, config=config), NewTopic("empty", 1, 1, config=config)]
    for created in admin.create_topics(topics).values():
        created.result()
    records = iter(expected_records())
    for _ in range(2):
        for codec in CODECS:
            producer = Producer(
                {
                    "bootstrap.servers": bootstrap,
                    "compression.type": codec,
                    "enable.idempotence": True,
                    "linger.ms": 50,
                }
            )
            for _ in range(BATCHES):
                for _ in range(RECORDS):
                    timestamp, key, value = next(records)
                    producer.produce("mixed", value, key, timestamp=timestamp, headers=[("h", b"x")])
                producer.flush()
    for outcome in ("commit", "abort"):
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": outcome})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("mixed", outcome.encode(), timestamp=BASE_TIMESTAMP + 2 * SEGMENT_STEP_MS)
        producer.flush()
        if outcome == "commit":
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    # The markers are written after EndTxn is answered.
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    end_offset = len(expected_records()) + 2 * 2
    while consumer.get_watermark_offsets(TopicPartition("mixed", 0), timeout=10)[1] < end_offset:
        time.sleep(0.1)
    consumer.close()


def keep(data: Path, archive: tarfile.TarFile, name: str) -> None:
    """Store the small files and the directories of our two topics."""
    files = [path for path in sorted(data.iterdir()) if path.is_file() and path.suffix != ".checkpoint"]
    files += sorted(data.glob("mixed-0/*")) + sorted(data.glob("empty-0/*"))
    for path in files:
        if path.name == ".lock":
            continue
        entry = tarfile.TarInfo(f"{name}/{path.relative_to(data)}")
        content = path.read_bytes()
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))


def main() -> None:
    """Run Kafka twice and write the archive."""
    directory = Path(tempfile.mkdtemp(prefix="apache-kafka-"))
    try:
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            server = start_kafka(directory, settings=SMALL_NODE, heap=HEAP)
            produce(server.bootstrap)
            server.kill()
            keep(directory / "data", archive, "unclean")
            server = start_kafka(directory, settings=SMALL_NODE, heap=HEAP)
            server.stop()
            keep(directory / "data", archive, "clean")
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
