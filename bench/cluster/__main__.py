"""Compares three of our nodes with three nodes of Apache Kafka: replicated produce, commit latency, and failover after
kill -9.

    python -m bench.cluster [--only produce,latency,failover] [--no-kafka] [--quick] [--json FILE]

Topics have three replicas, producers use acks=all, all nodes share the machine with the client, and settings are
defaults. The two clusters run one after the other, because six nodes would disturb each other by heartbeats.
`jepsen_tests` starts the nodes. Failover is measured from the kill until the surviving nodes report it in Metadata or
DescribeQuorum, which are requested continuously. "In sync again" is measured from the start of the killed node's new
process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import cattrs
import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.cluster.commit_latency import Pace, PaceResult
from bench.instruments.recycled_pages import RecycledPages
from bench.instruments.supervised import run_client
from bench.report import NAMES, OURS, REFERENCE, machine
from bench.throughput.client import Pass, PassResult
from jepsen_tests import probe
from jepsen_tests.network import Loopback
from jepsen_tests.real_cluster import Cluster
from jepsen_tests.systems import ApacheKafka, Odradek, Unavailable

MEASURES = ("produce", "latency", "failover")
PARTITIONS = 3
VALUE_BYTES = 1024
RECYCLED_BYTES = 2 << 30
KAFKA_HEAP = ("-Xmx768m", "-Xms768m", "-XX:+UseG1GC")
WARM_PASSES = {OURS: 1, REFERENCE: 3}
REST_SECONDS = 5.0
LED_PARTITIONS = 1000
ADMIN_SECONDS = 120.0
WAIT_SECONDS = 90.0
CREATE_PARTITIONS = 500
"""The number of partitions in one CreateTopics request."""


@attrs.frozen
class Batching:
    """The producer's batch settings, the number of records in a pass, and the goals as ratios to Kafka."""

    name: str
    title: str
    settings: dict[str, Any]
    records: int
    rate_min: float
    cpu_max: float


BATCHINGS = (
    Batching("16k", "16 KiB batches", {"batch.size": 16384, "linger.ms": 5}, 120_000, 4.0, 0.25),
    Batching("default", "default batches", {}, 400_000, 1.5, 0.5),
)


@attrs.frozen
class Figure:
    """One measured figure of one cluster. `at_most` is a goal for the value itself; 0 means none."""

    server: str
    name: str
    value: float
    unit: str
    at_most: float = 0.0


@attrs.frozen
class RatioGoal:
    """A goal for the ratio of our figure to Kafka's: a minimum or a maximum."""

    name: str
    at_least: float = 0.0
    at_most: float = 0.0


GOALS = (
    *(RatioGoal(f"produce, {each.title}: messages/s", at_least=each.rate_min) for each in BATCHINGS),
    *(RatioGoal(f"produce, {each.title}: CPU-s/GB of all nodes", at_most=each.cpu_max) for each in BATCHINGS),
    RatioGoal("commit latency at 1,000/s: p50", at_most=1.0),
    RatioGoal("commit latency at 1,000/s: p99", at_most=0.5),
)


@attrs.frozen
class AllNodes:
    """All nodes of a cluster, measured as one server: its CPU time is the sum of theirs."""

    name: str
    cluster: Cluster

    def cpu_seconds(self) -> float:
        return sum(node.cpu_seconds() for node in self.cluster.nodes.values())


@attrs.define
class Bench:
    """The measurements of one cluster."""

    key: str
    cluster: Cluster
    pages: RecycledPages
    options: argparse.Namespace
    figures: list[Figure] = attrs.field(factory=list)
    _serial: int = 0

    def run(self) -> list[Figure]:
        """Start the cluster, make the selected measurements, and kill the cluster."""
        started = time.monotonic()
        self.cluster.prepare()
        prepared = time.monotonic()
        self.cluster.start_all()
        say(f"{self.key}: formatted in {prepared - started:.1f} s")
        self._add("three nodes serve after", time.monotonic() - prepared, "s")
        before = self._servers.cpu_seconds()
        time.sleep(REST_SECONDS)
        self._add("CPU at rest, all nodes", 100 * (self._servers.cpu_seconds() - before) / REST_SECONDS, "%")
        if "produce" in self.options.only:
            for batching in BATCHINGS:
                self._produce(batching)
        if "latency" in self.options.only:
            self._latency()
        if "failover" in self.options.only:
            self._failover()
        return self.figures

    @property
    def _servers(self) -> AllNodes:
        return AllNodes(NAMES[self.key], self.cluster)

    def _add(self, name: str, value: float, unit: str, at_most: float = 0.0) -> None:
        self.figures.append(Figure(self.key, name, value, unit, at_most if self.key == OURS else 0.0))
        say(f"{self.key}: {name} {value:,.2f} {unit}")

    def _topic(self, name: str, partitions: int = PARTITIONS) -> None:
        topic = NewTopic(name, partitions, 3)
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        admin.create_topics([topic], operation_timeout=ADMIN_SECONDS)[name].result(ADMIN_SECONDS)

    def _produce(self, batching: Batching) -> None:
        records = batching.records // (4 if self.options.quick else 1)
        rates, costs = [], []
        passes = self.options.passes
        for number in range(WARM_PASSES[self.key] + passes):
            self._serial += 1
            topic = f"bench-{batching.name}-{self._serial}"
            self._topic(topic)
            task = Pass(
                "produce",
                self.cluster.bootstrap,
                topic,
                PARTITIONS,
                records,
                VALUE_BYTES,
                False,
                client_settings=batching.settings,
            )
            self.pages.refill()
            found, cpu = run_client(
                "bench.throughput.client", task, self._servers, None, during=self.pages.feeding
            )
            result = cattrs.structure(found, PassResult)
            admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
            admin.delete_topics([topic])[topic].result(ADMIN_SECONDS)
            if number >= WARM_PASSES[self.key]:
                rates.append(result.records / result.seconds)
                costs.append(1e9 * cpu / (result.records * VALUE_BYTES))
        self._add(f"produce, {batching.title}: messages/s", statistics.median(rates), "/s")
        self._add(f"produce, {batching.title}: CPU-s/GB of all nodes", statistics.median(costs), "s/GB")

    def _latency(self) -> None:
        self._topic("bench-latency")
        seconds = 5.0 if self.options.quick else 15.0
        task = Pace(
            self.cluster.bootstrap, "bench-latency", PARTITIONS, 1000.0, seconds, seconds / 2, VALUE_BYTES
        )
        for _ in range(WARM_PASSES[self.key]):
            run_client("bench.cluster.commit_latency", task, self._servers, None)
        found, _ = run_client("bench.cluster.commit_latency", task, self._servers, None)
        result = cattrs.structure(found, PaceResult)
        self._add("commit latency at 1,000/s: p50", result.p50_ms, "ms")
        self._add("commit latency at 1,000/s: p99", result.p99_ms, "ms")
        self._add("commit latency at 1,000/s: worst", result.max_ms, "ms")

    # -- failover after kill -9

    def _failover(self) -> None:
        controller_seconds, serving_seconds, insync_seconds = [], [], []
        self._topic("bench-failover")
        for _ in range(1 if self.options.quick else 3):
            victim = self._settled_controller()
            killed = time.monotonic()
            self.cluster.kill(victim)
            self._until("a new active controller", self._new_controller, victim)
            controller_seconds.append(time.monotonic() - killed)
            self._until("new leaders", self._led_by_others, "bench-failover", victim)
            started = time.monotonic()
            self.cluster.start(victim)
            self._until("the node to serve", self._serves, victim)
            serving_seconds.append(time.monotonic() - started)
            self._until("the node to be in sync", self._in_sync, "bench-failover", victim)
            insync_seconds.append(time.monotonic() - started)
        self._add("kill -9 of the active controller: a new one after", max(controller_seconds), "s", 3.5)
        self._add("killed node serves after its start", max(serving_seconds), "s")
        self._add("killed node in sync after its start", max(insync_seconds), "s", 5.0)
        if self.key == OURS:
            self._many_leaders()

    def _many_leaders(self) -> None:
        """Measure the failover of a broker that leads many partitions. The goal is two seconds, since the controller
        notices the end of a process without waiting for its session.
        """
        partitions = LED_PARTITIONS * len(self.cluster.nodes) // (10 if self.options.quick else 1)
        started = time.monotonic()
        topics = [f"bench-many-{number}" for number in range(0, partitions, CREATE_PARTITIONS)]
        for topic in topics:
            self._topic(topic, min(CREATE_PARTITIONS, partitions))
        self._add(f"created {partitions} partitions with three replicas in", time.monotonic() - started, "s")
        victim = self._settled_controller() % len(self.cluster.nodes) + 1
        leads = sum(self._leaders(topic)[victim] for topic in topics)
        killed = time.monotonic()
        self.cluster.kill(victim)
        for topic in topics:
            self._until("new leaders", self._led_by_others, topic, victim)
        self._add(f"kill -9 of a node that leads {leads} partitions: led again after", time.monotonic() - killed, "s", 2.0)  # fmt: skip
        started = time.monotonic()
        self.cluster.start(victim)
        for topic in topics:
            self._until("the node to be in sync", self._in_sync, topic, victim)
        self._add(f"... in sync in {partitions} partitions after its start", time.monotonic() - started, "s", 5.0)  # fmt: skip

    def _settled_controller(self) -> int:
        self.cluster.wait_until_whole()
        self._until("an active controller", self._new_controller, 0)
        found = self.cluster.active_controller()
        assert found is not None
        return found

    def _new_controller(self, old: int) -> bool:
        return self.cluster.active_controller() not in (None, old)

    def _serves(self, number: int) -> bool:
        node = self.cluster.nodes[number]
        return number in probe.brokers(node.host, node.port, 0.2)

    def _partitions(self, topic: str) -> Sequence[Any]:
        """Fetch the metadata of the topic's partitions, with a new client that has no cache."""
        alive = ",".join(
            f"{node.host}:{node.port}" for node in self.cluster.nodes.values() if node.is_running
        )
        admin = AdminClient({"bootstrap.servers": alive, "log_level": 0})
        try:
            return list(admin.list_topics(topic, timeout=2.0).topics[topic].partitions.values())
        except confluent_kafka.KafkaException:
            return []

    def _leaders(self, topic: str) -> Counter[int]:
        return Counter(each.leader for each in self._partitions(topic))

    def _led_by_others(self, topic: str, victim: int) -> bool:
        leaders = self._leaders(topic)
        return bool(leaders) and all(leader > 0 and leader != victim for leader in leaders)

    def _in_sync(self, topic: str, node: int) -> bool:
        partitions = self._partitions(topic)
        return bool(partitions) and all(node in each.isrs for each in partitions)

    def _until(self, what: str, holds: Callable[..., bool], *arguments: Any) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not holds(*arguments):
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited in vain for {what}, for {WAIT_SECONDS:.0f} s")
            time.sleep(0.02)


def table(figures: Sequence[Figure]) -> str:
    """Return a table with a line per figure: both clusters, the ratio, the goal."""
    cells = {(each.name, each.server): each for each in figures}
    goals = {goal.name: goal for goal in GOALS}
    lines = ["| three nodes | Odradek | Kafka | x | goal |", "| --- | ---: | ---: | ---: | --- |"]
    for name in dict.fromkeys(each.name for each in figures):
        ours, kafka = cells.get((name, OURS)), cells.get((name, REFERENCE))
        ratio = ours.value / kafka.value if ours and kafka and kafka.value else None
        verdict = ""
        if (goal := goals.get(name)) is not None and ratio is not None:
            holds = ratio >= goal.at_least and (not goal.at_most or ratio <= goal.at_most)
            verdict = f"{goal.at_least or goal.at_most:g}x: {'holds' if holds else '**missed**'}"
        elif ours is not None and ours.at_most:
            verdict = (
                f"{ours.at_most:g} {ours.unit}: {'holds' if ours.value <= ours.at_most else '**missed**'}"
            )
        shown = [f"{each.value:,.2f} {each.unit}" if each else "" for each in (ours, kafka)]
        lines.append(f"| {name} | {shown[0]} | {shown[1]} | {f'{ratio:.2f}' if ratio else ''} | {verdict} |")
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line: the measurements to make."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=(__doc__ or "").partition("\n")[0])  # fmt: skip
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(MEASURES), help=f"some of {', '.join(MEASURES)}, separated by commas")  # fmt: skip
    parser.add_argument("--no-kafka", action="store_true", help="do not measure Apache Kafka")
    parser.add_argument("--no-odradek", action="store_true", help="do not measure our nodes")
    parser.add_argument("--quick", action="store_true", help="send fewer records and kill fewer nodes")
    parser.add_argument("--passes", type=int, default=3, help="measured passes of each workload (default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    options = parser.parse_args()
    if unknown := [each for each in options.only if each not in MEASURES]:
        parser.error(f"unknown measurement {unknown[0]!r} in --only")
    return options


def say(text: str) -> None:
    """Show progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Measure Kafka first, then our nodes; print the table at the end. Return the exit status."""
    options = parse_arguments()
    figures: list[Figure] = []
    systems: list[tuple[str, Odradek | ApacheKafka]] = []
    if not options.no_kafka:
        systems.append((REFERENCE, ApacheKafka(heap=KAFKA_HEAP)))
    if not options.no_odradek:
        systems.append((OURS, Odradek()))
    with (
        tempfile.TemporaryDirectory(prefix="bench-cluster-") as name,
        RecycledPages(Path(name), RECYCLED_BYTES) as pages,
    ):
        for key, system in systems:
            cluster = Cluster(system, Loopback(), Path(name) / key)
            try:
                figures += Bench(key, cluster, pages, options).run()
            except Unavailable as missing:
                say(f"{NAMES[key]} cannot be measured: {missing}")
            finally:
                cluster.close()
    print(table(figures))
    if options.json:
        found = {"machine": machine(), "figures": [attrs.asdict(each) for each in figures]}
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
