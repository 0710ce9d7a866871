"""Transactions beside Apache Kafka's in the same run, through the same client (librdkafka).

    python -m bench.transactions                      # copy, commit, large, committed, ids; two pairs of passes
    python -m bench.transactions --only copy --seconds 10 --pairs 3
    python -m bench.transactions --without-kafka

| measure | what | goal |
| --- | --- | --- |
| copy | consume, produce 100 records and the group's offsets, commit: transactions per second | 2x Kafka's |
| commit | the time of one commit_transaction of 100 records, p50 | 1x Kafka's |
| large | 10,000 records per transaction, as a part of plain idempotent produce on the same server | 0.5x |
| committed | records per second at read_committed, as a part of read_uncommitted of the same topic | 0.95x |
| ids | 10,000 transactional ids: from a restart to the answer of the last one; bytes of memory per id | 3 s, 1 KiB |

Both servers run at once, on one node each, and take turns: A B A B. Each figure is the median of the passes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import attrs
import confluent_kafka

from bench.groups import Wire
from bench.kafka_server import KafkaUnavailable, start_kafka
from bench.markdown import table
from bench.odradek_server import launch_odradek, start_odradek
from bench.processes import ServerProcess
from bench.throughput import create_topic
from wire.error_codes import ErrorCode
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.init_producer_id import InitProducerIdRequest

MEASURES = ("copy", "commit", "large", "committed", "ids")
SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
VALUE = b"v" * 100
COPIED = 100
LARGE = 10_000
IDS = 10_000
WAIT_SECONDS = 60.0
SOURCE_RECORDS = 1_000_000
OURS, KAFKA = "Odradek", "Apache Kafka"


@attrs.define
class Side:
    """One server, and what has been measured of it."""

    name: str
    server: ServerProcess
    found: dict[str, list[float]] = attrs.field(factory=dict)

    def note(self, measure: str, value: float) -> None:
        self.found.setdefault(measure, []).append(value)


def producer(bootstrap: str, **settings: object) -> confluent_kafka.Producer:
    made = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 0, "socket.nagle.disable": True, **settings}
    )
    return made


def transactional(bootstrap: str, name: str) -> confluent_kafka.Producer:
    made = producer(bootstrap, **{"transactional.id": name})
    made.init_transactions(WAIT_SECONDS)
    return made


def fill(bootstrap: str, topic: str, records: int) -> None:
    made = producer(bootstrap, **{"linger.ms": 5})
    for _ in range(records):
        while True:
            try:
                made.produce(topic, VALUE)
                break
            except BufferError:
                made.poll(0.1)
    if made.flush(WAIT_SECONDS):
        raise RuntimeError(f"{topic} could not be filled")


def reader(bootstrap: str, group: str, isolation: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )


def copy(side: Side, seconds: float, number: int) -> None:
    """Transactions per second of a copy of 100 records each, with the group's offsets."""
    bootstrap = side.server.bootstrap
    source, sink = f"source-{number}", f"sink-{number}"
    create_topic(bootstrap, source, 1)
    create_topic(bootstrap, sink, 1)
    fill(bootstrap, source, SOURCE_RECORDS)
    made, read = transactional(bootstrap, f"copy-{number}"), reader(bootstrap, source, "read_committed")
    read.subscribe([source])
    done, began = 0, 0.0
    position = 0
    while not began or time.perf_counter() - began < seconds:
        found = [each for each in read.consume(COPIED, 1.0) if each.error() is None]
        if not found:
            if position == SOURCE_RECORDS:
                raise RuntimeError("the source is too short for so many seconds")
            continue
        if not began:
            began = time.perf_counter()
        made.begin_transaction()
        for each in found:
            made.produce(sink, each.value())
        position += len(found)
        made.send_offsets_to_transaction(
            [confluent_kafka.TopicPartition(source, 0, position)],
            read.consumer_group_metadata(),
            WAIT_SECONDS,
        )
        made.commit_transaction(WAIT_SECONDS)
        done += 1
    side.note("copy", done / (time.perf_counter() - began))
    read.close()


def commit(side: Side, seconds: float, number: int) -> None:
    """Milliseconds of one commit, p50."""
    topic = f"commit-{number}"
    create_topic(side.server.bootstrap, topic, 1)
    made = transactional(side.server.bootstrap, topic)
    took: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        made.begin_transaction()
        for _ in range(COPIED):
            made.produce(topic, VALUE)
        made.flush(WAIT_SECONDS)
        began = time.perf_counter()
        made.commit_transaction(WAIT_SECONDS)
        took.append(time.perf_counter() - began)
    side.note("commit", 1000 * statistics.median(took))


def large(side: Side, seconds: float, number: int) -> None:
    """The rate of records in transactions of 10,000, over that of plain idempotent produce."""
    bootstrap, topic = side.server.bootstrap, f"large-{number}"
    create_topic(bootstrap, topic, 1)
    rates: list[float] = []
    for made in (
        producer(bootstrap, **{"enable.idempotence": True, "linger.ms": 5}),
        transactional(bootstrap, topic),
    ):
        is_plain = not rates
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            if not is_plain:
                made.begin_transaction()
            for _ in range(LARGE):
                made.produce(topic, VALUE)
            if is_plain:
                made.flush(WAIT_SECONDS)
            else:
                made.commit_transaction(WAIT_SECONDS)
            done += LARGE
        rates.append(done / (time.perf_counter() - began))
    side.note("large", rates[1] / rates[0])


def committed(side: Side, seconds: float, number: int) -> None:
    """The rate of reading at read_committed over that at read_uncommitted, of a topic of transactions."""
    bootstrap, topic = side.server.bootstrap, f"committed-{number}"
    create_topic(bootstrap, topic, 1)
    made = transactional(bootstrap, topic)
    for turn in range(20):
        made.begin_transaction()
        for _ in range(LARGE):
            made.produce(topic, VALUE)
        if turn % 10 == 9:
            made.flush(WAIT_SECONDS)
            made.abort_transaction(WAIT_SECONDS)
        else:
            made.commit_transaction(WAIT_SECONDS)
    rates: dict[str, list[float]] = {"read_uncommitted": [], "read_committed": []}
    for _ in range(3):
        for isolation, of_level in rates.items():
            read = reader(bootstrap, topic, isolation)
            read.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
            count, began, is_over = 0, time.perf_counter(), False
            while not is_over:
                for each in read.consume(10_000, 1.0):
                    is_over = is_over or each.error() is not None
                    count += each.error() is None
            of_level.append(count / (time.perf_counter() - began))
            read.close()
    ratios = [statistics.median(rates[each]) for each in ("read_committed", "read_uncommitted")]
    # Aborted records are read and dropped: a tenth of the topic.
    side.note("committed", ratios[0] / 0.9 / ratios[1])


def init_ids(bootstrap: str) -> None:
    """Make the transactional ids known to their coordinators."""
    wire = Wire(bootstrap)
    for number in range(IDS):
        while True:
            wire.send(InitProducerIdRequest(f"id-{number}", 60_000), 4)
            code = wire.receive(InitProducerIdRequest, 4).error_code
            if not code:
                break
            if code not in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
                raise RuntimeError(f"InitProducerId is answered with {code}")
            time.sleep(0.02)
    wire.socket.close()


def wait_for_coordinators(bootstrap: str) -> None:
    wire = Wire(bootstrap)
    while True:
        wire.send(FindCoordinatorRequest("id-0", 1), 3)
        if not wire.receive(FindCoordinatorRequest, 3).error_code:
            break
        time.sleep(0.05)
    wire.socket.close()


def ids(directory: Path) -> tuple[float, float]:
    """Ours alone: seconds from a restart until all ids are served again, and bytes of memory per id."""
    server = start_odradek(directory, settings=SETTINGS)
    try:
        wait_for_coordinators(server.bootstrap)
        transactional(server.bootstrap, "first")
        before = server.rss_kib()
        init_ids(server.bootstrap)
        after = server.rss_kib()
    finally:
        server.stop()
    server = launch_odradek(directory / "server.properties")
    try:
        began = time.perf_counter()
        init_ids(server.bootstrap)
        took = time.perf_counter() - began
    finally:
        server.stop()
    return took, (after - before) * 1024 / IDS


RUNS: Mapping[str, Callable[[Side, float, int], None]] = {
    "copy": copy,
    "commit": commit,
    "large": large,
    "committed": committed,
}
UNITS = {"copy": "transactions/s", "commit": "ms p50", "large": "of plain", "committed": "of uncommitted"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(MEASURES), help="measures, separated by commas")
    parser.add_argument("--seconds", type=float, default=6.0, help="of one pass")
    parser.add_argument("--pairs", type=int, default=2, help="passes of each server, in turn")
    parser.add_argument("--without-kafka", action="store_true", help="ours alone")
    args = parser.parse_args()
    wanted = args.only.split(",")
    rows: list[list[str]] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides = [Side(OURS, start_odradek(directory / "ours", settings=SETTINGS))]
        stack.callback(sides[0].server.stop)
        if not args.without_kafka:
            try:
                sides.append(Side(KAFKA, start_kafka(directory / "kafka", settings=SETTINGS)))
                stack.callback(sides[1].server.stop)
            except KafkaUnavailable as error:
                print(f"without Apache Kafka: {error}", file=sys.stderr)
        for name in (each for each in RUNS if each in wanted):
            for number in range(args.pairs):
                for side in sides:
                    RUNS[name](side, args.seconds, number)
            values = [statistics.median(side.found[name]) for side in sides]
            ratio = f"{values[0] / values[1]:.2f}x" if len(values) > 1 else ""
            rows.append([f"{name} ({UNITS[name]})", *(f"{each:.3g}" for each in values), ratio])
            print(" | ".join(rows[-1]), flush=True)
    if "ids" in wanted:
        with tempfile.TemporaryDirectory() as place:
            took, per_id = ids(Path(place))
        rows.append([f"ids (s until {IDS:,} are served; bytes each)", f"{took:.2f}; {per_id:.0f}", "", ""])
    print(table(["", *(side.name for side in sides), "ratio"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
