"""`python -m bench`: measures a node in comparison with Apache Kafka and librdkafka's mock cluster, as ratios.

See bench/README.md for the method and the last figures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs

from bench import report
from bench.history.recorded import NotRecordable, record
from bench.hot_path.small_requests import KINDS, Drive, Kind
from bench.hot_path.stages import STAGES
from bench.instruments.loopback import SEGMENT_BYTES, enter_own_network
from bench.instruments.recycled_pages import RecycledPages
from bench.instruments.supervised import run_client
from bench.scale import footprint
from bench.throughput.mock_cluster import mock_cluster
from bench.throughput.passes import (
    WORKLOADS,
    Contender,
    Throughput,
    temporary_topic,
    wait_until_deleted,
    warm_page_cache,
)
from testkit.kafka_server import KafkaUnavailable, ensure_jars, start_kafka
from testkit.odradek_server import prepare_odradek, start_odradek
from testkit.processes import ServerProcess, spawn, wait_until_serving

KAFKA_WARM_PASSES = 4
OUR_WARM_PASSES = 1
FAST_DELETION = {
    "log.segment.delete.delay.ms": "0",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "500",
}
"""Settings by which deleted topics and segments are removed from disk at once, on every server."""
SMALL_TOPIC = {"retention.bytes": str(64 << 20), "segment.bytes": str(16 << 20)}
"""Settings by which a topic keeps only its newest 64 MiB. So its appends reuse memory pages, as on a node that has run
for a while.
"""
RECOVERY_BYTES = 1 << 30
RECYCLED_BYTES = 2 << 30
RECYCLED_BYTES = 2 << 30
WARM_BYTES = 1 << 30


def parse_arguments() -> argparse.Namespace:
    """Parse the command line: the measurements to make, and their settings."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").partition("\n")[0])
    measures = parser.add_argument_group("what to measure (default: throughput, --requests and --stages)")
    measures.add_argument("--throughput", action="store_true", help="produce and consume with librdkafka")
    measures.add_argument("--requests", action="store_true", help="the CPU time of a small request")
    measures.add_argument("--stages", action="store_true", help="the CPU time of a request, by stage")
    measures.add_argument("--startup", action="store_true", help="time to start, and memory after it")
    measures.add_argument("--connections", type=int, metavar="N", help="the memory of N idle connections")
    measures.add_argument("--partitions", type=int, metavar="N", help="the memory of N empty partitions")
    measures.add_argument(
        "--recovery", action="store_true", help="time to restart after kill -9 with 1 GiB of log"
    )
    measures.add_argument(
        "--all", action="store_true", help="all measurements, with 5000 connections and 1000 partitions"
    )
    how = parser.add_argument_group("how to measure")
    how.add_argument(
        "--quick", action="store_true", help="run fewer and smaller passes: too imprecise for a verdict"
    )
    how.add_argument("--passes", type=int, help="measured passes per server (default: 5, with --quick: 2)")
    how.add_argument("--workloads", help="comma-separated: " + ", ".join(each.name for each in WORKLOADS))
    how.add_argument(
        "--topic-partitions", type=int, default=1, metavar="N", help="partitions of each topic (default: 1)"
    )
    how.add_argument("--no-kafka", action="store_true", help="do not measure Apache Kafka")
    how.add_argument("--no-mock", action="store_true", help="do not measure librdkafka's mock cluster")
    how.add_argument(
        "--pinning",
        choices=("deployed", "split", "none"),
        default="none",
        help="the CPUs of servers and clients. none: all processes use all CPUs. deployed: our node has one CPU and "
        "its client the others; Kafka and its client use all. split: each server has one CPU, and its client the "
        "others (default: none)",
    )
    how.add_argument(
        "--small-segments", action="store_true", help="run on a separate loopback with segments of 8 KiB"
    )
    how.add_argument(
        "--data", type=Path, help="put the servers' data below this directory (default: temporary)"
    )
    how.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    how.add_argument(
        "--record", action="store_true", help="add the ratios to bench/history, for docs/benchmarks.md"
    )
    options = parser.parse_args()
    if options.all:
        options.throughput = options.requests = options.stages = options.startup = options.recovery = True
        options.connections = options.connections or 5000
        options.partitions = options.partitions or 1000
    chosen = ("throughput", "requests", "stages", "startup", "connections", "partitions", "recovery")
    if not any(getattr(options, name) for name in chosen):
        options.throughput = options.requests = options.stages = True
    return options


@attrs.define
class Bench:
    """One run of the benchmark: its options, where servers run, and the results so far."""

    options: argparse.Namespace
    directory: Path
    with_kafka: bool
    cpus: Sequence[int]
    found: dict[str, Any] = attrs.field(factory=dict)

    def say(self, text: str) -> None:
        """Show progress on standard error."""
        print(
            f"\r\033[K{text}" if sys.stderr.isatty() else text,
            end="" if sys.stderr.isatty() else "\n",
            file=sys.stderr,
            flush=True,
        )

    def show(self, table: str) -> None:
        """Print a result on standard output."""
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        print(table, flush=True)

    def server_cpus(self, key: str) -> Sequence[int] | None:
        """Return the CPUs on which a server runs; None means all."""
        return self.cpus[:1] if self._is_pinned(key) else None

    def client_cpus(self, key: str) -> Sequence[int] | None:
        """Return the CPUs on which the client of a server runs; None means all."""
        return self.cpus[1:] if self._is_pinned(key) else None

    def _is_pinned(self, key: str) -> bool:
        wanted = self.options.pinning
        return len(self.cpus) > 1 and (wanted == "split" or (wanted == "deployed" and key != "kafka"))

    @property
    def disk_servers(self) -> list[str]:
        return ["odradek", "kafka"] if self.with_kafka else ["odradek"]

    def start(self, key: str, ending: ExitStack) -> tuple[ServerProcess, Path]:
        """Start a server on its CPUs; it is killed when `ending` closes. Return the server and its data directory."""
        home = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix=f"{key}-", dir=self.directory)))
        starter: Callable[..., ServerProcess] = start_odradek if key == "odradek" else start_kafka
        server = starter(home, settings=FAST_DELETION, cpus=self.server_cpus(key))
        ending.callback(server.kill)
        return server, home / "data"

    def throughput(self) -> None:
        """Measure the throughput of all workloads on all servers, in passes that alternate between the servers."""
        chosen = (
            self.options.workloads.split(",") if self.options.workloads else [each.name for each in WORKLOADS]
        )
        workloads = [each for each in WORKLOADS if each.name in chosen]
        quick = self.options.quick
        with ExitStack() as ending:
            contenders = []
            for key in self.disk_servers:
                self.say(f"starting {key}")
                server, data = self.start(key, ending)
                warm_passes = OUR_WARM_PASSES if key == "odradek" else KAFKA_WARM_PASSES
                contenders.append(Contender(key, server, data, warm_passes, self.client_cpus(key)))
            if not self.options.no_mock:
                mock = ending.enter_context(mock_cluster(cpus=self.server_cpus("mock")))
                contenders.append(Contender("mock", mock, None, 1, self.client_cpus("mock")))
            self.say("touching memory")
            pages = ending.enter_context(RecycledPages(self.directory, RECYCLED_BYTES))
            run = Throughput(
                pages=pages,
                contenders=contenders,
                passes=self.options.passes or (2 if quick else 5),
                partitions=self.options.topic_partitions,
                say=self.say,
                scale=0.25 if quick else 1.0,
            )
            ratios = []
            for workload in workloads:
                summaries = run.run(workload)
                ratios += report.ratios(workload, summaries)
                self.show(report.throughput_table(workload, summaries))
        self.found["throughput"] = [attrs.asdict(each) for each in run.summaries]
        self.found["ratios"] = [{**attrs.asdict(each), "holds": each.holds} for each in ratios]

    def drive(self, kind: Kind, key: str, server: ServerProcess) -> report.RequestCost:
        """Run one pass of small requests against a server, and return the cost of a request."""
        seconds = 1.5 if self.options.quick else 5.0
        topic = f"small-{kind.name}"
        with temporary_topic(server.bootstrap, topic, 1, SMALL_TOPIC):
            task = Drive(kind, server.bootstrap, topic, seconds)
            figures, cpu_seconds = run_client(
                "bench.hot_path.small_requests", task, server, self.client_cpus(key)
            )
        wait_until_deleted(server.log_path.with_name("data"), topic)
        requests = figures["requests"]
        return report.RequestCost(key, kind.name, requests / figures["seconds"], 1e6 * cpu_seconds / requests)

    def requests(self) -> list[report.RequestCost]:
        """Measure the CPU per small request on every server with a disk, after a first run that is not counted."""
        costs = []
        warm_page_cache(self.directory, WARM_BYTES)
        with ExitStack() as ending:
            for key in self.disk_servers:
                server, _ = self.start(key, ending)
                for kind in KINDS:
                    self.say(f"requests: {kind.name} at {server.name}")
                    for _ in range(3 if key == "kafka" else 1):
                        self.drive(kind, key, server)
                    costs.append(self.drive(kind, key, server))
        costs.sort(key=lambda cost: [kind.name for kind in KINDS].index(cost.kind))
        return costs

    def stages(self, plain: Sequence[report.RequestCost]) -> list[report.StageCost]:
        """Repeat the small requests against an instrumented node, and return the CPU time of each stage. The stage
        `wake` is the plain node's CPU time that no other stage accounts for.
        """
        costs = []
        for cost in plain:
            kind = next(each for each in KINDS if each.name == cost.kind)
            self.say(f"stages: {kind.name}")
            with tempfile.TemporaryDirectory(prefix="stages-", dir=self.directory) as name:
                output = Path(name) / "stages.json"
                server = self._start_instrumented(Path(name), output)
                try:
                    self.drive(kind, "odradek", server)
                finally:
                    server.stop()
                stages = json.loads(output.read_text())["microseconds"]
            stages["wake"] = cost.cpu_microseconds - sum(stages[stage] for stage in STAGES)
            costs.append(report.StageCost(kind.name, cost.cpu_microseconds, stages))
        return costs

    def _start_instrumented(self, directory: Path, output: Path) -> ServerProcess:
        properties = prepare_odradek(directory, settings=FAST_DELETION)
        listeners = [
            line for line in properties.read_text().splitlines() if line.startswith("advertised.listeners=")
        ]
        server = spawn(
            "Odradek, instrumented",
            [sys.executable, "-m", "bench.hot_path.stages", properties, output],
            bootstrap=listeners[0].rpartition("//")[2],
            log_path=directory / "server.log",
            cpus=self.server_cpus("odradek"),
        )
        wait_until_serving(server)
        return server

    def footprint(self) -> None:
        """Measure start, idle connections, empty partitions and recovery, as the options select."""
        figures: list[footprint.Figure] = []
        for key in self.disk_servers:
            if self.options.startup:
                self.say(f"startup of {key}")
                figures += footprint.startup(key)
            if self.options.connections and key == "odradek":
                self.say(f"memory of {self.options.connections} idle connections to {key}")
                figures += footprint.idle_connections(key, self.options.connections)
            if self.options.partitions:
                self.say(f"memory of {self.options.partitions} empty partitions of {key}")
                figures += footprint.empty_partitions(key, self.options.partitions)
            if self.options.recovery:
                self.say(f"recovery of {key}")
                size = RECOVERY_BYTES // 8 if self.options.quick else RECOVERY_BYTES
                figures += footprint.recovery(key, size)
        if figures:
            self.show(report.footprint_table(figures))
            self.found["footprint"] = [{**attrs.asdict(each), "holds": each.holds} for each in figures]

    def run(self) -> None:
        """Make all measurements that the options select."""
        options = self.options
        if options.throughput:
            self.throughput()
        if options.requests or options.stages:
            costs = self.requests()
            self.found["requests"] = [attrs.asdict(each) for each in costs]
            self.show(report.requests_table(KINDS, costs))
            if options.stages:
                stages = self.stages([cost for cost in costs if cost.server == "odradek"])
                self.found["stages"] = [attrs.asdict(each) for each in stages]
                self.show(report.stages_table(stages))
                if any(cost.stages["wake"] < 0 for cost in stages):
                    self.show(
                        "  (the stages are by the wall clock: something else was running here, measure again)"
                    )
        self.footprint()


def kafka_is_here(options: argparse.Namespace) -> bool:
    """True if Apache Kafka can be measured, too. Otherwise print the reason."""
    if options.no_kafka:
        print(
            "Apache Kafka is not measured because of --no-kafka, so there are no ratios to it.",
            file=sys.stderr,
        )
        return False
    try:
        ensure_jars()
    except KafkaUnavailable as reason:
        print(f"Apache Kafka is SKIPPED, so there are no ratios to it: {reason}", file=sys.stderr)
        return False
    return True


def main() -> int:
    """Measure, print tables, and write JSON; return the exit status."""
    options = parse_arguments()
    with_kafka = kafka_is_here(options)
    own_network = options.small_segments and enter_own_network()
    if options.small_segments and not own_network:
        print("This machine allows no network namespace, so the host's loopback is used.", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="odradek-bench-", dir=options.data) as name:
        bench = Bench(
            options=options,
            directory=Path(name),
            with_kafka=with_kafka,
            cpus=sorted(os.sched_getaffinity(0)),
        )
        bench.found["machine"] = report.machine()
        bench.found["method"] = {
            "pinning": options.pinning,
            "segment_bytes": SEGMENT_BYTES if own_network else None,
            "quick": options.quick,
            "topic_partitions": options.topic_partitions,
        }
        bench.run()
    if options.json:
        options.json.write_text(json.dumps(bench.found, indent=2) + "\n")
    if options.record:
        try:
            print(f"recorded: {record(bench.found, Path(__file__).parents[1])}", file=sys.stderr)
        except NotRecordable as reason:
            print(f"not recorded: {reason}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
