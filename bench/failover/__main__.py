"""Measures for how long nobody serves a partition when a node dies, hangs, or is moved, beside Apache Kafka.

    python -m bench.failover [--only ROW,...] [--times N] [--no-kafka] [--json FILE]

Three nodes, each broker and controller, with default settings, in network namespaces of their own on one machine. The
topic has one partition with three replicas. Writes with acks=all by hand give the silence of the servers alone
(`silence.py`). Each row is the worst of `--times` runs. The clusters run one after the other.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.failover.silence import Writer
from bench.report import NAMES, OURS, REFERENCE, machine
from jepsen_tests.network import Loopback, Namespaces, Network, enter_own_network, namespaces
from jepsen_tests.real_cluster import Cluster
from jepsen_tests.systems import ApacheKafka, Odradek, Unavailable
from odradek import Admin

SILENCE_SECONDS_MAX = 60.0
SETTLED_SECONDS = 3.0
"""How long the cluster rests before each event. Controllers connect to new brokers, and brokers fetch."""
BACK_SECONDS = 0.2
"""A supervisor such as systemd starts a dead process again after this time (`RestartSec`)."""
AFTER_MOVE_SECONDS = 0.5
ADMIN_SECONDS = 60.0
KAFKA_HEAP = ("-Xmx768m", "-Xms768m", "-XX:+UseG1GC")


@attrs.frozen
class Row:
    """One event. `goal` is the longest silence in seconds that we want."""

    name: str
    title: str
    goal: float
    measure: Callable[[Bench], float]
    needs_links: bool = False


@attrs.frozen
class Replicas:
    """A partition: the id of its leader, the ids of its replicas in order, and how many of them are in sync."""

    leader: int
    replicas: list[int]
    in_sync: int


class Bench:
    """Measures one cluster."""

    def __init__(self, cluster: Cluster, times: int) -> None:
        self.cluster = cluster
        self._times = times
        self._serial = 0

    def run(self, rows: Sequence[Row]) -> dict[str, float]:
        """Start the nodes and measure all rows. Return the worst silence in seconds of each row, by its name."""
        self.cluster.prepare()
        self.cluster.start_all()
        found: dict[str, float] = {}
        for row in rows:
            if row.needs_links and not self.cluster.network.can_partition:
                say(f"{row.title}: this machine has no network namespaces")
                continue
            each = [row.measure(self) for _ in range(self._times)]
            found[row.name] = max(each)
            say(f"{row.title}: {', '.join(f'{seconds:.3f}' for seconds in each)} s")
        return found

    # -- what rows need

    def fresh(self, leads: str) -> tuple[Writer, int]:
        """Make a topic whose leader is the active controller's node (`controller`) or another one (`other`). Return a
        writer to it and the leader, when all is at rest.
        """
        self.cluster.wait_until_whole()
        active = None
        while active is None:
            active = self.cluster.active_controller()
        while True:
            self._serial += 1
            topic = f"silence-{self._serial}"
            admin = self._admin()
            made = admin.create_topics([NewTopic(topic, 1, 3)], operation_timeout=ADMIN_SECONDS)
            made[topic].result(ADMIN_SECONDS)
            leader = self.partition(topic).leader
            if (leader == active) == (leads == "controller"):
                break
        writer = Writer(
            topic, {number: f"{node.host}:{node.port}" for number, node in self.cluster.nodes.items()}
        )
        writer.until_acknowledged(SILENCE_SECONDS_MAX)
        until = time.monotonic() + SETTLED_SECONDS
        while time.monotonic() < until or self.partition(topic).in_sync < 3:
            writer.until_acknowledged(SILENCE_SECONDS_MAX)
            time.sleep(0.05)
        self.topic = topic
        return writer, leader

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})

    def partition(self, topic: str) -> Replicas:
        """Return the topic's partition as clients see it, when it has a leader."""
        while True:
            partitions = self._admin().list_topics(topic, timeout=ADMIN_SECONDS).topics[topic].partitions
            if partitions and partitions[0].leader >= 0:
                found = partitions[0]
                return Replicas(found.leader, list(found.replicas), len(found.isrs))
            time.sleep(0.05)

    def after(
        self, writer: Writer, victim: int, event: Callable[[int], None], *, returns: bool = False
    ) -> float:
        """Let an event hit the leader. Return the seconds until a write is acknowledged. Unless the leader `returns`,
        only the others are asked.
        """
        with writer:
            if not returns:
                writer.leave_out(victim)
            began = time.monotonic()
            event(victim)
            silence = writer.until_acknowledged(SILENCE_SECONDS_MAX).acknowledged_at - began
        return silence

    def healed(self, silence: float) -> float:
        """Let everything run again, and return `silence`."""
        network = self.cluster.network
        for number, node in self.cluster.nodes.items():
            self.cluster.resume(number)
            if not node.is_running:
                self.cluster.start(number)
            if network.can_partition:
                for other in self.cluster.nodes:
                    network.unblock(number, other)
        return silence

    def cut_off(self, victim: int, *, hears: bool = False, speaks: bool = False) -> None:
        """Drop all packets between a node and the other ones, in one direction or in both."""
        for other in self.cluster.nodes:
            if other != victim:
                if not speaks:
                    self.cluster.network.block(victim, other)
                if not hears:
                    self.cluster.network.block(other, victim)


# -- the rows


def _killed(bench: Bench, leads: str = "other") -> float:
    writer, leader = bench.fresh(leads)
    return bench.healed(bench.after(writer, leader, bench.cluster.kill))


def _killed_controller(bench: Bench) -> float:
    return _killed(bench, "controller")


def _restarted(bench: Bench) -> float:
    def event(victim: int) -> None:
        bench.cluster.kill(victim)
        time.sleep(BACK_SECONDS)
        bench.cluster.start(victim)

    writer, leader = bench.fresh("other")
    return bench.healed(bench.after(writer, leader, event, returns=True))


def _dead_host(bench: Bench, leads: str = "other") -> float:
    writer, leader = bench.fresh(leads)
    return bench.healed(bench.after(writer, leader, bench.cut_off))


def _dead_host_of_controller(bench: Bench) -> float:
    return _dead_host(bench, "controller")


def _stopped(bench: Bench) -> float:
    writer, leader = bench.fresh("other")
    return bench.healed(bench.after(writer, leader, bench.cluster.pause))


def _mute(bench: Bench) -> float:
    writer, leader = bench.fresh("other")
    return bench.healed(bench.after(writer, leader, lambda victim: bench.cut_off(victim, hears=True)))


def _deaf(bench: Bench) -> float:
    writer, leader = bench.fresh("other")
    return bench.healed(bench.after(writer, leader, lambda victim: bench.cut_off(victim, speaks=True)))


def _ended(bench: Bench) -> float:
    """Stop the leader's node in order, by SIGTERM, and start it again when it has ended."""
    writer, leader = bench.fresh("other")
    process = bench.cluster.nodes[leader].process
    assert process is not None
    process.terminate()
    with writer:
        return bench.healed(writer.longest_gap(lambda: process.poll() is not None, AFTER_MOVE_SECONDS))


def _moved(bench: Bench) -> float:
    """Let another replica become the preferred leader, and elect it."""
    writer, leader = bench.fresh("other")
    replicas = bench.partition(bench.topic).replicas
    turned = [*(each for each in replicas if each != leader), leader]
    with Admin(bootstrap_servers=bench.cluster.bootstrap) as admin, writer:
        admin.alter_partition_reassignments({(bench.topic, 0): turned})
        while bench.partition(bench.topic).replicas != turned:
            time.sleep(0.05)
        librdkafka = bench._admin()
        chosen = librdkafka.elect_leaders(ElectionType.PREFERRED, [TopicPartition(bench.topic, 0)])
        return writer.longest_gap(chosen.done, AFTER_MOVE_SECONDS)


ROWS = (
    Row("killed", "kill -9 of the leader", 1.0, _killed),
    Row("controller", "kill -9 of the leader that is the active controller", 1.0, _killed_controller),
    Row("restarted", f"kill -9 of the leader, started again after {BACK_SECONDS * 1000:.0f} ms", 1.0, _restarted),
    Row("host", "the leader's host dies", 3.5, _dead_host, needs_links=True),
    Row("host-controller", "the host of leader and active controller dies", 6.0, _dead_host_of_controller, needs_links=True),
    Row("stopped", "the leader's process hangs (SIGSTOP)", 3.5, _stopped),
    Row("mute", "the leader hears everybody, and nobody hears it", 3.5, _mute, needs_links=True),
    Row("deaf", "everybody hears the leader, and it hears nobody", 9.5, _deaf, needs_links=True),
    Row("ended", "the leader's node stops in order (SIGTERM)", 0.05, _ended),
    Row("moved", "the preferred leader is elected", 0.05, _moved),
)  # fmt: skip


def table(rows: Sequence[Row], found: dict[str, dict[str, float]]) -> str:
    """Return the figures as a table in Markdown."""
    lines = ["| event | Odradek | Apache Kafka 4.3 | goal |", "| --- | ---: | ---: | --- |"]
    for row in rows:
        ours, kafka = (found.get(each, {}).get(row.name) for each in (OURS, REFERENCE))
        shown = ["" if each is None else f"{each:.3f} s" for each in (ours, kafka)]
        verdict = "" if ours is None else ("holds" if ours <= row.goal else "**missed**")
        lines.append(f"| {row.title} | {shown[0]} | {shown[1]} | {row.goal:g} s: {verdict} |")
    return "\n".join(lines)


def say(text: str) -> None:
    """Show progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line: the rows to measure."""
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=(__doc__ or "").partition("\n")[0])  # fmt: skip
    parser.add_argument("--only", type=lambda text: text.split(","), default=names, help=f"some of {', '.join(names)}, separated by commas")  # fmt: skip
    parser.add_argument("--times", type=int, default=3, help="runs of each row (default: 3)")
    parser.add_argument("--no-kafka", action="store_true", help="do not measure Apache Kafka")
    parser.add_argument("--no-odradek", action="store_true", help="do not measure our nodes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    options = parser.parse_args()
    if unknown := [each for each in options.only if each not in names]:
        parser.error(f"unknown row {unknown[0]!r} in --only")
    return options


def main() -> int:
    """Measure Kafka first, then our nodes; print the table at the end. Return the exit status."""
    options = parse_arguments()
    rows = [row for row in ROWS if row.name in options.only]
    systems: list[tuple[str, Odradek | ApacheKafka]] = []
    if not options.no_kafka:
        systems.append((REFERENCE, ApacheKafka(heap=KAFKA_HEAP)))
    if not options.no_odradek:
        systems.append((OURS, Odradek()))
    found: dict[str, dict[str, float]] = {}
    has_links = enter_own_network()
    with tempfile.TemporaryDirectory(prefix="bench-failover-") as name:
        for key, system in systems:
            network: Network | Namespaces = namespaces((1, 2, 3)) if has_links else Loopback()
            cluster = Cluster(system, network, Path(name) / key)
            try:
                say(f"{NAMES[key]}:")
                found[key] = Bench(cluster, options.times).run(rows)
            except Unavailable as missing:
                say(f"{NAMES[key]} cannot be measured: {missing}")
            finally:
                cluster.close()
                network.close()
    print(table(rows, found))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "silence_seconds": found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
