"""Compares transactions with Apache Kafka's, with the same clients (librdkafka, and ours for copies).

    python -m bench.transactions                      # all measures; two pairs of passes
    python -m bench.transactions --only copy --seconds 10 --pairs 3
    python -m bench.transactions --nodes 3            # three nodes of each, one cluster after the other
    python -m bench.transactions --without-kafka

| measure | what | goal |
| --- | --- | --- |
| copy | librdkafka consumes, produces 100 records and the group's offsets, commits: transactions per second | 2x Kafka's |
| copy-own | the same by our client, whose pauses after CONCURRENT_TRANSACTIONS are short | 2x Kafka's |
| commit | the time of one commit_transaction of 100 records, p50 | 1x Kafka's |
| large | 10,000 records per transaction, as a part of plain idempotent produce on the same server | 0.5x |
| committed | fetches per second at read_committed, as a part of those at read_uncommitted, of the same topic | 0.95x |
| ids | 10,000 transactional ids: from a restart to the answer of the last one; bytes of memory per id | 3 s, 1 KiB |
| state | bytes of memory per producer in a partition's state: after one transaction, and with five batches kept | 200 B |

One node of each system runs at the same time, and their passes alternate. Clusters of three nodes run one after the
other, because six nodes would disturb each other by heartbeats. Their topics have three replicas, two of which must
be in sync, and the first pass of each measure is not counted. Each figure is the median of the passes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import attrs
import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.instruments.tables import table
from bench.transactions.copies import COPIED, COPIERS, WAIT_SECONDS, transactional
from jepsen_tests.network import Loopback
from jepsen_tests.real_cluster import Cluster
from jepsen_tests.systems import ApacheKafka, Odradek, System, Unavailable
from odradek.data_plane.log.parts.producer_entry import BATCHES_KEPT
from odradek.data_plane.log.parts.producer_state import ProducerState
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.batches.transaction_markers import EndMarker
from odradek.wire.error_codes import ErrorCode
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from testkit.kafka_server import KafkaUnavailable, start_kafka
from testkit.odradek_server import launch_odradek, start_odradek
from testkit.raw_requests import RawConnection

MEASURES = ("copy", "copy-own", "commit", "large", "committed", "ids", "state")
SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
SETTINGS_OF_THREE = {
    "transaction.state.log.min.isr": "2",
    "offsets.topic.num.partitions": "50",
    "transaction.state.log.num.partitions": "50",
}
KAFKA_HEAP = ("-Xmx768m", "-Xms768m", "-XX:+UseG1GC")
VALUE = b"v" * 100
LARGE = 10_000
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
FETCH_BYTES = 64 << 10
FETCH_VERSION = 12
IDS = 10_000
PRODUCERS = 10_000
SOURCE_RECORDS = 1_000_000
SOURCE_RECORDS_PER_SECOND = 170_000
OURS, KAFKA = "Odradek", "Apache Kafka"


@attrs.define
class Side:
    """One system to measure, and its results."""

    name: str
    bootstrap: str
    replicas: int
    found: dict[str, list[float]] = attrs.field(factory=dict)

    def note(self, measure: str, value: float) -> None:
        self.found.setdefault(measure, []).append(value)

    def create(self, topic: str) -> None:
        """Create a topic with one partition."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 3})
        created = admin.create_topics([NewTopic(topic, 1, self.replicas)], operation_timeout=WAIT_SECONDS)
        created[topic].result(WAIT_SECONDS)


def producer(bootstrap: str, **settings: object) -> confluent_kafka.Producer:
    made = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 0, "socket.nagle.disable": True, **settings}
    )
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
        raise RuntimeError(f"not all records to {topic} were acknowledged within {WAIT_SECONDS:g} s")


def copy(side: Side, seconds: float, number: int, client: str = "librdkafka") -> None:
    """Measure the transactions per second of a copy: each has 100 records and the group's offsets."""
    source, sink = f"source-{client}-{number}", f"sink-{client}-{number}"
    side.create(source)
    side.create(sink)
    fill(side.bootstrap, source, min(SOURCE_RECORDS, int(SOURCE_RECORDS_PER_SECOND * seconds)))
    rate = COPIERS[client](side.bootstrap, source, sink, seconds)
    side.note("copy" if client == "librdkafka" else "copy-own", rate)


def commit(side: Side, seconds: float, number: int) -> None:
    """Measure the milliseconds of one commit, as the median."""
    topic = f"commit-{number}"
    side.create(topic)
    made = transactional(side.bootstrap, topic)
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
    """Measure the records per second in transactions of 10,000 records, divided by the records per second of plain
    idempotent produce.
    """
    bootstrap, topic = side.bootstrap, f"large-{number}"
    side.create(topic)
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
    """Measure the fetches per second with read_committed, divided by the fetches per second with read_uncommitted, in a
    topic written by transactions.

    Fetch requests are made by hand, because the work of a client library would hide the broker's cost of the
    isolation level.
    """
    bootstrap, topic = side.bootstrap, f"committed-{number}"
    side.create(topic)
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
    wire = RawConnection(bootstrap)
    _read_whole(wire, topic, READ_COMMITTED)  # Not measured: the first read has additional costs.
    rates: dict[int, list[float]] = {READ_UNCOMMITTED: [], READ_COMMITTED: []}
    for turn in range(20):
        for isolation, of_level in sorted(rates.items(), reverse=turn % 2 == 1):
            of_level.append(_read_whole(wire, topic, isolation))
    wire.socket.close()
    ratios = [
        each / plain for each, plain in zip(rates[READ_COMMITTED], rates[READ_UNCOMMITTED], strict=True)
    ]
    side.note("committed", statistics.median(ratios))


def _read_whole(wire: RawConnection, topic: str, isolation: int) -> float:
    """Fetch a partition from its beginning to its last stable offset. Return the fetches per second."""
    offset, fetches, began = 0, 0, time.perf_counter()
    while True:
        partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        wire.send(
            FetchRequest(
                max_wait_ms=500,
                min_bytes=1,
                max_bytes=FETCH_BYTES,
                isolation_level=isolation,
                topics=[FetchTopic(topic, partitions=[partition])],
            ),
            FETCH_VERSION,
        )
        [found] = wire.receive(FetchRequest, FETCH_VERSION).responses[0].partitions
        if found.error_code:
            raise RuntimeError(f"Fetch returned the error code {found.error_code}")
        fetches += 1
        for _, header in iter_batches(found.records):
            offset = header.next_offset
        if offset >= found.last_stable_offset >= 0:
            return fetches / (time.perf_counter() - began)


def init_ids(bootstrap: str) -> None:
    """Send InitProducerId for all transactional ids, so that coordinators know them."""
    wire = RawConnection(bootstrap)
    for number in range(IDS):
        while True:
            wire.send(InitProducerIdRequest(f"id-{number}", 60_000), 4)
            code = wire.receive(InitProducerIdRequest, 4).error_code
            if not code:
                break
            if code not in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
                raise RuntimeError(f"InitProducerId for id-{number} returned the error code {code}")
            time.sleep(0.02)
    wire.socket.close()


def wait_for_coordinators(bootstrap: str) -> None:
    wire = RawConnection(bootstrap)
    while True:
        wire.send(FindCoordinatorRequest("id-0", 1), 3)
        if not wire.receive(FindCoordinatorRequest, 3).error_code:
            break
        time.sleep(0.05)
    wire.socket.close()


def ids(directory: Path) -> tuple[float, float]:
    """Measure our node alone: the seconds from a restart until all ids are served again, and the bytes of memory per
    id.
    """
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


def state() -> tuple[float, float]:
    """Measure the bytes of memory per producer in a partition's producer state: after one transaction, and with five
    remembered batches.
    """
    found = []
    for batches in (1, BATCHES_KEPT):
        tracemalloc.start()
        known = ProducerState()
        offset = 0
        for producer_id in range(PRODUCERS):
            for sequence in range(batches):
                # Each batch has a different timestamp, because one integer that all batches share would cost no memory.
                known.update(
                    (1 << 20) + producer_id, 0, sequence, (1 << 20) + offset, 0, (1 << 40) + offset, True
                )
                offset += 1
            known.end_transaction(1 << 20 | producer_id, 0, (1 << 20) + offset, 1 << 40, EndMarker(False, 0))
            offset += 1
            known.forget_ended((1 << 20) + offset)
        found.append(tracemalloc.get_traced_memory()[0] / PRODUCERS)
        tracemalloc.stop()
    return found[0], found[1]


RUNS: Mapping[str, Callable[[Side, float, int], None]] = {
    "copy": copy,
    "copy-own": partial(copy, client="odradek"),
    "commit": commit,
    "large": large,
    "committed": committed,
}
UNITS = {
    "copy": "transactions/s",
    "copy-own": "transactions/s",
    "commit": "ms p50",
    "large": "of plain",
    "committed": "of uncommitted",
}


def run_single_nodes(options: argparse.Namespace, wanted: Sequence[str]) -> list[Side]:
    """Measure one node of each system, in turns, and return the results."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = [(OURS, start_odradek(directory / "ours", settings=SETTINGS))]
        stack.callback(servers[0][1].stop)
        if not options.without_kafka:
            try:
                servers.append((KAFKA, start_kafka(directory / "kafka", settings=SETTINGS)))
                stack.callback(servers[1][1].stop)
            except KafkaUnavailable as error:
                print(f"Apache Kafka is not measured: {error}", file=sys.stderr)
        sides = [Side(name, server.bootstrap, 1) for name, server in servers]
        for name in wanted:
            for number in range(options.pairs):
                for side in sides:
                    RUNS[name](side, options.seconds, number)
        return sides


def run_clusters(options: argparse.Namespace, wanted: Sequence[str]) -> list[Side]:
    """Measure clusters of three nodes of each system, one after the other, and return the results."""
    systems: list[tuple[str, System]] = [(OURS, Odradek())]
    if not options.without_kafka:
        systems.append((KAFKA, ApacheKafka(heap=KAFKA_HEAP)))
    sides = []
    with tempfile.TemporaryDirectory(prefix="bench-transactions-") as place:
        for name, system in systems:
            cluster = Cluster(system, Loopback(), Path(place) / system.name, SETTINGS_OF_THREE)
            try:
                cluster.prepare()
                cluster.start_all()
                side = Side(name, cluster.bootstrap, 3)
                for measure in wanted:
                    # The first pass is not counted, because compilers and coordinators warm up.
                    RUNS[measure](side, options.seconds, -1)
                    side.found[measure].clear()
                    for number in range(options.pairs):
                        RUNS[measure](side, options.seconds, number)
                        print(f"{name}: {measure} {side.found[measure][-1]:.3g}", file=sys.stderr, flush=True)
                sides.append(side)
            except Unavailable as error:
                print(f"{name} is not measured: {error}", file=sys.stderr)
            finally:
                cluster.close()
    return sides


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", default=",".join(MEASURES), help="measurements to make, separated by commas"
    )
    parser.add_argument(
        "--nodes", type=int, choices=(1, 3), default=1, help="nodes of each system (default: 1)"
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a pass (default: 6)")
    parser.add_argument("--pairs", type=int, default=2, help="passes of each system (default: 2)")
    parser.add_argument("--without-kafka", action="store_true", help="do not measure Apache Kafka")
    options = parser.parse_args()
    asked = options.only.split(",")
    if unknown := [each for each in asked if each not in MEASURES]:
        parser.error(f"unknown measurement {unknown[0]!r} in --only")
    wanted = [each for each in RUNS if each in asked]
    rows: list[list[str]] = []
    sides: list[Side] = []
    if wanted:
        sides = (run_single_nodes if options.nodes == 1 else run_clusters)(options, wanted)
    for name in wanted:
        values = [statistics.median(side.found[name]) for side in sides]
        ratio = f"{values[0] / values[1]:.2f}x" if len(values) > 1 else ""
        rows.append([f"{name} ({UNITS[name]})", *(f"{each:.3g}" for each in values), ratio])
    blank = [""] * max(1, len(sides))
    if "ids" in asked and options.nodes == 1:
        with tempfile.TemporaryDirectory() as place:
            took, per_id = ids(Path(place))
        rows.append([f"ids (s until {IDS:,} are served; bytes each)", f"{took:.2f}; {per_id:.0f}", *blank])
    if "state" in asked and options.nodes == 1:
        least, most = state()
        rows.append(["state (bytes per producer; with five batches)", f"{least:.0f}; {most:.0f}", *blank])
    print(table(["", *([side.name for side in sides] or [OURS]), "ratio"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
