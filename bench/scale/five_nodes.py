"""Measures a cluster of five nodes with many partitions of three replicas, all on this machine.

    python -m bench.scale.five_nodes [--stages 5000,10000,20000] [--kafka] [--json FILE]

Each node is broker and controller. At each stage, the cluster gets more partitions and rests. Then a client asks for all
metadata. Then the active controller's node is killed (kill -9) and started again. Figures of each stage:

* how long the new partitions took until each had a leader,
* the time and size of a Metadata answer with all topics (the best of a few),
* how long after the kill the next controller has made a decision (a topic is created),
* how long until each partition has another leader in Metadata answers, which take their time as well,
* how long after its start the killed node serves, and how long until all replicas are in sync again,
* the memory of the largest node, and the CPU of all five together while nobody asks for anything.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

from bench.instruments.tables import table
from bench.report import NAMES, OURS, REFERENCE, machine
from jepsen_tests.network import Loopback
from jepsen_tests.real_cluster import Cluster, Node
from jepsen_tests.systems import ApacheKafka, Odradek, System
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponsePartition
from testkit.raw_requests import RawClient, decoded, frame

NODES, REPLICAS = 5, 3
PARTITIONS_PER_TOPIC, TOPICS_PER_REQUEST = 100, 10
WAIT_SECONDS_MAX = 600.0
REST_SECONDS, IDLE_SECONDS = 10.0, 10.0
ASKED = 5
CREATE_VERSION, METADATA_VERSION = 5, 9
ANSWER_SECONDS = 60.0
HEAP = ("-Xmx1g", "-Xms1g", "-XX:+UseG1GC")


@attrs.define
class Bench:
    """A cluster that grows, and its figures by stage."""

    cluster: Cluster
    topics: int = 0
    serial: int = 0

    def client(self, *, without: int = 0) -> RawClient:
        """Connect to the first node, but not to node `without`."""
        node = next(each for number, each in self.cluster.nodes.items() if number != without)
        return RawClient(f"{node.host}:{node.port}", ANSWER_SECONDS)

    def grow(self, partitions: int) -> float:
        """Create topics until there are so many partitions. Return the seconds until each has a leader."""
        began = time.monotonic()
        wanted = partitions // PARTITIONS_PER_TOPIC
        with self.client() as client:
            for first in range(self.topics, wanted, TOPICS_PER_REQUEST):
                names = range(first, min(first + TOPICS_PER_REQUEST, wanted))
                rows = [CreatableTopic(f"many-{each:05}", PARTITIONS_PER_TOPIC, REPLICAS) for each in names]
                answer = client.request(CreateTopicsRequest(rows, 60_000), CREATE_VERSION)
                if codes := {each.error_code for each in answer.topics} - {0}:
                    raise RuntimeError(f"CreateTopics returned the error codes {sorted(codes)}")
        self.topics = wanted
        self.wait(lambda each: each.leader_id >= 0)
        return time.monotonic() - began

    def partitions(self, without: int) -> list[MetadataResponsePartition]:
        with self.client(without=without) as client:
            answer = client.request(MetadataRequest(None), METADATA_VERSION)
        return [
            each for topic in answer.topics for each in topic.partitions if topic.name.startswith("many-")
        ]

    def wait(self, is_right: Callable[[MetadataResponsePartition], bool], *, without: int = 0) -> None:
        """Wait until each partition is as it should be. Raises `TimeoutError`."""
        until = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            found = self.partitions(without)
            if len(found) == self.topics * PARTITIONS_PER_TOPIC and all(map(is_right, found)):
                return
            if time.monotonic() > until:
                raise TimeoutError(f"the partitions were not as wanted after {WAIT_SECONDS_MAX:.0f} s")
            time.sleep(0.1)

    def metadata(self) -> dict[str, float]:
        """Measure a Metadata answer with all topics."""
        request = frame(MetadataRequest(None), METADATA_VERSION)
        best, answer = float("inf"), b""
        with self.client() as client:
            for _ in range(ASKED):
                began = time.monotonic()
                client.send(request)
                answer = client.read_frame()
                best = min(best, time.monotonic() - began)
        assert isinstance(decoded(answer, 3, METADATA_VERSION), MetadataResponse)
        return {"Metadata answer, ms": best * 1e3, "Metadata answer, MiB": len(answer) / (1 << 20)}

    def decide(self, without: int) -> None:
        """Create a topic, through whichever node takes the request."""
        until = time.monotonic() + WAIT_SECONDS_MAX
        with self.client(without=without) as client:
            while time.monotonic() < until:
                self.serial += 1
                row = CreatableTopic(f"decided-{self.serial}", 1, 1)
                answer = client.request(CreateTopicsRequest([row], 5_000), CREATE_VERSION)
                if not answer.topics[0].error_code:
                    return
                time.sleep(0.01)
        raise TimeoutError(f"no controller has decided anything after {WAIT_SECONDS_MAX:.0f} s")

    def fail_over(self) -> dict[str, float]:
        """Kill the active controller's node, and start it again."""
        active = None
        while active is None:
            active = self.cluster.active_controller()
        killed = active
        self.cluster.kill(killed)
        began = time.monotonic()
        self.decide(killed)
        decided = time.monotonic() - began
        self.wait(lambda each: each.leader_id not in (-1, killed), without=killed)
        led = time.monotonic() - began
        self.cluster.start(killed)
        began = time.monotonic()
        self.cluster.wait_until_whole(WAIT_SECONDS_MAX)
        back = time.monotonic() - began
        self.wait(lambda each: len(each.isr_nodes) == REPLICAS)
        return {
            "next decision after kill -9 of the controller, s": decided,
            "each partition led by another node after, s": led,
            "the node serves again after its start, s": back,
            "all replicas in sync after, s": time.monotonic() - began,
        }

    def footprint(self) -> dict[str, float]:
        """Measure memory, and the CPU of nodes that nobody asks for anything."""
        nodes = list(self.cluster.nodes.values())
        used = sum(each.cpu_seconds() for each in nodes)
        time.sleep(IDLE_SECONDS)
        idle = sum(each.cpu_seconds() for each in nodes) - used
        return {
            "memory of the largest node, MiB": max(map(_rss_mib, nodes)),
            "CPU of five idle nodes, % of a core": 100 * idle / IDLE_SECONDS,
        }

    def stage(self, partitions: int) -> dict[str, float]:
        """Grow to so many partitions, and measure everything."""
        figures = {"new partitions led after, s": self.grow(partitions)}
        time.sleep(REST_SECONDS)
        figures |= self.metadata() | self.footprint() | self.fail_over()
        return figures


def _rss_mib(node: Node) -> float:
    assert node.process is not None
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def measure(system: System, directory: Path, stages: Sequence[int]) -> dict[int, dict[str, float]]:
    """Measure all stages on one system. Return the figures by the number of partitions."""
    cluster = Cluster(system, Loopback(), directory, size=NODES)
    cluster.prepare()
    found = {}
    try:
        cluster.start_all()
        bench = Bench(cluster)
        for partitions in stages:
            found[partitions] = bench.stage(partitions)
            print(f"{system.name}, {partitions:,}: {found[partitions]}", file=sys.stderr, flush=True)
    finally:
        cluster.close()
    return found


def report(found: Mapping[str, Mapping[int, Mapping[str, float]]]) -> str:
    """Return all figures as a table in Markdown."""
    columns = [(key, stage) for key, stages in found.items() for stage in stages]
    names = list(dict.fromkeys(name for key, stage in columns for name in found[key][stage]))
    heads = ["figure", *(f"{NAMES[key]}, {stage:,} partitions" for key, stage in columns)]
    rows = [[name, *(f"{found[key][stage][name]:.2f}" for key, stage in columns)] for name in names]
    return table(heads, rows)


def main() -> None:
    """Measure our nodes, and Apache Kafka's if asked for; print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale.five_nodes")
    parser.add_argument("--stages", type=lambda text: [int(each) for each in text.split(",")], default=[5_000, 10_000, 20_000], help="numbers of partitions (default: 5000,10000,20000)")  # fmt: skip
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka, too: five JVMs of 1 GiB")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    options = parser.parse_args()
    systems: dict[str, System] = {OURS: Odradek()}
    if options.kafka:
        systems[REFERENCE] = ApacheKafka(heap=HEAP)
    found = {}
    with tempfile.TemporaryDirectory(prefix="bench-five-") as name:
        for key, system in systems.items():
            found[key] = measure(system, Path(name) / key, options.stages)
    print(report(found))
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine(), "figures": found}, indent=1))


if __name__ == "__main__":
    main()
