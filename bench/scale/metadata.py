"""Measures the costs of many partitions: a metadata change, their creation, memory, restarts.

    python -m bench.scale.metadata [--topics 100] [--partitions 100] [--disks 4] [--json FILE]

The measurements use one of our nodes with `topics` x `partitions` partitions. While they are created, another
connection sends ApiVersions continuously: its slowest answer shows how long the event loop was blocked. The metadata
log writes a snapshot every few hundred KiB, so that restarts begin with a snapshot.

With several disks (directories of one disk here) there are also quotas, and `MOVING` partitions move slowly to
another disk. Then the CPU of the idle node is measured as well.
"""

from __future__ import annotations

import argparse
import json
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from bench.report import footprint_table
from bench.scale.footprint import Figure
from odradek import Client
from odradek.client.admin import AlterConfig, ConfigResource, ResourceType
from odradek.client.admin.admin_quotas import QuotaAlteration
from odradek.metadata_quorum.image.image_builder import ImageBuilder, Interned
from odradek.metadata_quorum.image.image_records import records_of
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.wire.api_keys import ApiKey
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.metadata_records import PartitionChangeRecord, PartitionRecord, TopicRecord
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from testkit.odradek_server import launch_odradek, prepare_odradek
from testkit.processes import ServerProcess
from testkit.raw_requests import check_answer, connect, exchange, framed, record_batch

NAME = "odradek"
TOPICS_PER_REQUEST = 10
SNAPSHOT_BYTES = 300_000
SETTLE_SECONDS = 1.0
CREATE_SECONDS_MAX = 300.0
CHANGES = 1000
MOVING = 100
MOVING_BYTES = 100_000
RATE_KEY = "replica.alter.log.dirs.io.max.bytes.per.second"
SYNCED_SECONDS = 70.0
"""The seconds to wait before the idle node is measured. Before that, workers still sync new directories and
checkpoints, which takes 5 % of a core.
"""
IDLE_SECONDS = 20.0
_API_VERSIONS_VERSION = 3
_CREATE_TOPICS_VERSION = 5


def image_of(topics: int, partitions: int) -> MetadataImage:
    """Build the metadata image of a cluster of three brokers."""
    builder = ImageBuilder(MetadataImage.empty("bench"))
    for number in range(1, topics + 1):
        topic_id = number.to_bytes(16, "big")
        builder.replay(number, TopicRecord(f"topic-{number}", topic_id), 1)
        for index in range(partitions):
            replicas = [1 + (index + at) % 3 for at in range(3)]
            record = PartitionRecord(index, topic_id, replicas, list(replicas), leader=replicas[0])
            record.directories = [bytes(15) + bytes([100 + replica]) for replica in replicas]
            builder.replay(number, record, 1)
    return builder.build()[0]


def microseconds_per_change(image: MetadataImage) -> float:
    """Return the microseconds of an ISR change that makes a new image: the best of three runs."""
    interned = Interned()
    topics = list(image.topics_by_id.values())
    best = float("inf")
    for _ in range(3):
        state = image
        started = time.perf_counter()
        for number in range(CHANGES):
            topic = topics[number % len(topics)]
            builder = ImageBuilder(state, interned)
            change = PartitionChangeRecord(number % len(topic.partitions), topic.topic_id, [1, 2])
            builder.replay(state.offset + 1, change, 1)
            state, _ = builder.build()
        best = min(best, (time.perf_counter() - started) / CHANGES)
    return best * 1e6


def image_costs(topics: int, partitions: int) -> list[Figure]:
    """Measure one change of one partition in a small and a large image, and the records of the large image."""
    few, image = image_of(1, 10), image_of(topics, partitions)
    small, large = microseconds_per_change(few), microseconds_per_change(image)
    started = time.perf_counter()
    count = sum(1 for _ in records_of(image))
    seconds = time.perf_counter() - started
    return [
        Figure(NAME, "one change, 10 partitions", small, "us"),
        Figure(NAME, f"one change, {topics * partitions} partitions", large, "us"),
        Figure(NAME, "ratio of the two", large / small, "x", 2.0),
        Figure(NAME, f"{count} records of the image", seconds, "s"),
    ]


@attrs.define
class Asker:
    """Sends ApiVersions continuously on its own connection until `end`."""

    slowest_ms: float = 0.0
    answers: int = 0
    _ended: threading.Event = attrs.field(factory=threading.Event)

    def run(self, bootstrap: str) -> None:
        frame = framed(ApiKey.API_VERSIONS, _API_VERSIONS_VERSION, ApiVersionsRequest("bench", "1.0"))
        with connect(bootstrap) as connection:
            while not self._ended.is_set():
                started = time.perf_counter()
                connection.sendall(frame)
                size = 4 + int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
                connection.recv(size - 4, socket.MSG_WAITALL)
                self.slowest_ms = max(self.slowest_ms, (time.perf_counter() - started) * 1000)
                self.answers += 1
                time.sleep(0.002)

    def end(self) -> None:
        self._ended.set()


@contextmanager
def asking(bootstrap: str) -> Iterator[Asker]:
    """Run an `Asker` in a thread during the block."""
    asker = Asker()
    thread = threading.Thread(target=asker.run, args=(bootstrap,), daemon=True)
    thread.start()
    try:
        yield asker
    finally:
        asker.end()
        thread.join()


def create(server: ServerProcess, data: Path, topics: int, partitions: int) -> list[Figure]:
    """Create all topics, in requests of `TOPICS_PER_REQUEST`, wait until every log is on disk, and return the
    figures.
    """
    count = topics * partitions
    with asking(server.bootstrap) as asker:
        started = time.monotonic()
        for first in range(0, topics, TOPICS_PER_REQUEST):
            numbers = range(first, min(first + TOPICS_PER_REQUEST, topics))
            request = CreateTopicsRequest(
                [CreatableTopic(f"topic-{number:04}", partitions, 1) for number in numbers], 60_000
            )
            frame = framed(ApiKey.CREATE_TOPICS, _CREATE_TOPICS_VERSION, request)
            response = exchange(server.bootstrap, frame, ApiKey.CREATE_TOPICS, _CREATE_TOPICS_VERSION)
            codes = {topic.error_code for topic in response.topics}
            if codes != {0}:
                raise RuntimeError(f"CreateTopics returned the error codes {sorted(codes)}")
        decided = time.monotonic() - started
        while sum(1 for _ in data.glob("data*/topic-*")) < count:
            if time.monotonic() - started > CREATE_SECONDS_MAX:
                raise TimeoutError(f"the node has fewer than {count} logs after {CREATE_SECONDS_MAX:.0f} s")
            time.sleep(0.05)
        seconds = time.monotonic() - started
    return [
        Figure(NAME, f"deciding {count} partitions", decided, "s"),
        Figure(NAME, f"creating {count} partitions", seconds, "s", 30.0),
        Figure(NAME, "slowest other answer meanwhile", asker.slowest_ms, "ms", 100.0),
    ]


def begin_moves(server: ServerProcess, disks: Sequence[Path], partitions: int) -> None:
    """Write to some partitions, set client quotas, and begin to move the partitions slowly to another disk."""
    moving = [(f"topic-{number // partitions:04}", number % partitions) for number in range(MOVING)]
    for topic, index in moving:
        data = PartitionProduceData(index, memoryview(record_batch(MOVING_BYTES, 10)))
        request = ProduceRequest(None, 1, 30_000, [TopicProduceData(topic, partition_data=[data])])
        check_answer(exchange(server.bootstrap, framed(ApiKey.PRODUCE, 9, request), ApiKey.PRODUCE, 9))
    with Client(server.bootstrap) as client:
        quotas = [
            QuotaAlteration((("client-id", name),), {"producer_byte_rate": 1e6, "request_percentage": 50.0})
            for name in (None, *(f"client-{number}" for number in range(100)))
        ]
        moves = {
            (topic, index, 1): str(next(disk for disk in disks if not (disk / f"{topic}-{index}").exists()))
            for topic, index in moving
        }
        # As in Kafka, this key can only be set dynamically.
        throttle = {ConfigResource(ResourceType.BROKER, "1"): [AlterConfig(RATE_KEY, "1")]}
        refused = [
            *(error for _, error in client.admin.incremental_alter_configs(throttle) if error is not None),
            *filter(None, client.admin.alter_client_quotas(quotas).values()),
            *filter(None, client.admin.alter_replica_log_dirs(moves).values()),
        ]
    if refused:
        raise RuntimeError(f"the node refused throttles, quotas or moves: {refused}")
    while sum(1 for disk in disks for _ in disk.glob("*-future")) < MOVING:
        time.sleep(0.1)


def measure(directory: Path, topics: int, partitions: int, disk_count: int) -> list[Figure]:
    """Make all measurements on one node."""
    figures = image_costs(topics, partitions)
    count = topics * partitions
    disks = [directory / "data", *(directory / f"data-{number}" for number in range(2, disk_count + 1))]
    settings = {
        "metadata.log.max.record.bytes.between.snapshots": str(SNAPSHOT_BYTES),
        "log.dirs": ",".join(map(str, disks)),
    }
    properties = prepare_odradek(directory, settings=settings)
    data = directory / "data"
    server = launch_odradek(properties)
    try:
        empty_kib = server.rss_kib()
        figures += create(server, directory, topics, partitions)
        if disk_count > 1:
            begin_moves(server, disks, partitions)
            time.sleep(SYNCED_SECONDS)
            used = server.cpu_seconds()
            time.sleep(IDLE_SECONDS)
            share = 100 * (server.cpu_seconds() - used) / IDLE_SECONDS
            figures.append(Figure(NAME, "CPU of the idle node", share, "% of a core", 3.0))
            each = (server.rss_kib() - empty_kib) / count
            figures.append(Figure(NAME, "RSS per partition", each, "KiB", 2.0))
        time.sleep(SETTLE_SECONDS)
        figures.append(Figure(NAME, "RSS with them", server.rss_kib() / 1024, "MiB", 150.0))
        snapshots = [
            path for path in data.glob("__cluster_metadata-0/*.checkpoint") if path.name[:20] != "0" * 20
        ]
        figures.append(Figure(NAME, "snapshots kept", len(snapshots), ""))
        for how in ("a clean stop", "kill -9"):
            if how == "kill -9":
                server.kill()
            else:
                server.stop(60.0)
            server = launch_odradek(properties)
            figures.append(Figure(NAME, f"ready again after {how}", server.ready_seconds, "s", 3.0))
        time.sleep(SETTLE_SECONDS)
        figures.append(Figure(NAME, "RSS after a restart", server.rss_kib() / 1024, "MiB", 150.0))
    finally:
        server.kill()
    return figures


def main() -> None:
    """Measure and print the table; the exit status is 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale.metadata")
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=100, help="partitions per topic (default: 100)")
    parser.add_argument(
        "--disks",
        type=int,
        default=1,
        help="data directories (default: 1); with several, quotas are set and replicas are moved",
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as name:
        figures = measure(Path(name), options.topics, options.partitions, options.disks)
    print(footprint_table(figures))
    if options.json is not None:
        options.json.write_text(json.dumps([attrs.asdict(each) for each in figures], indent=1))
    raise SystemExit(0 if all(each.holds for each in figures) else 1)


if __name__ == "__main__":
    main()
