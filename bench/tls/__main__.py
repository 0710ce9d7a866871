"""Compares TLS with Apache Kafka's: throughput, handshakes, idle connections, and clients during a flood of
handshakes.

    python -m bench.tls                        # everything, with Kafka
    python -m bench.tls --only handshakes,flood --no-kafka
    python -m bench.tls --quick                # an impression in two minutes

Both servers have a TLS listener with an RSA-2048 certificate. Topics are created on a plaintext listener. The goals: a
node accepts at least twice as many produced messages per second as Kafka, with half the CPU time per GB. To consumers
it sends at least as many messages as Kafka, with as much CPU time. `throughput` measures this with librdkafka, `whole`
with a client that fills its TLS records. The node does at least as many full handshakes per CPU second as Kafka. An
idle connection takes at most 40 KiB. During 500 full handshakes a second, connected clients keep 80 % of their
throughput.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import ssl
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from bench import report
from bench.clients.producers import BY_TLS
from bench.hot_path.small_requests import FETCH_BYTES, KINDS, Drive, Kind
from bench.instruments.recycled_pages import RecycledPages
from bench.instruments.supervised import run_client
from bench.scale.footprint import settled_rss_kib
from bench.throughput.passes import Contender, Throughput, Workload, temporary_topic
from bench.tls.handshakes import Handshaking, Shaken, ask_api_versions, flood, open_tls_connection
from bench.tls.producers import Producing
from testkit.kafka_server import KafkaUnavailable, ensure_jars, start_kafka
from testkit.odradek_server import start_odradek
from testkit.processes import ServerProcess, combined_node_properties, free_ports

WORKLOAD = Workload(
    "tls-1k-16k",
    "TLS, 1 KiB records, 16 KiB batches",
    1024,
    300_000,
    "none",
    {"batch.size": 16384, "linger.ms": 5},
    produce_cpu_max=0.5,
    produce_rate_min=2.0,
    consume_cpu_max=1.0,
    consume_rate_min=1.0,
)
MEASURES = ("throughput", "whole", "clients", "handshakes", "idle", "flood")
FAST_DELETION = {"log.segment.delete.delay.ms": "0"}
RECYCLED_BYTES = 1 << 30
IDLE_KIB_MAX = 40.0
FLOOD_PER_SECOND = 500
WHOLE_KINDS = {
    "produce-16k": (WORKLOAD.produce_rate_min, WORKLOAD.produce_cpu_max),
    "fetch-16k": (WORKLOAD.consume_rate_min, WORKLOAD.consume_cpu_max),
}
"""Goals by kind of request: the smallest ratio of rates, and the largest ratio of costs."""
FLOODED_KINDS = ("produce-16k", "fetch-16k")
KEPT_MIN = 0.8
KAFKA_WARM_PASSES = 4


@attrs.frozen
class TlsServer:
    """A server with a TLS listener, and the authority that signed its certificate."""

    key: str
    process: ServerProcess
    address: str
    authority: Path

    @property
    def client_settings(self) -> dict[str, Any]:
        return {"security.protocol": "SSL", "ssl.ca.location": str(self.authority)}


def make_certificates(directory: Path) -> tuple[Path, Path]:
    """Make two files: the authority's certificate, and the server's key (RSA-2048, PKCS #8, as Java needs) with its
    certificate.
    """
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost", key_type=trustme.KeyType.RSA)
    trusted, own = directory / "authority.pem", directory / "server.pem"
    authority.cert_pem.write_to_path(trusted)
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    own.write_bytes(pem + b"".join(each.bytes() for each in issued.cert_chain_pems))
    return trusted, own


@contextmanager
def tls_server(key: str, directory: Path, cpus: Sequence[int] | None = None) -> Iterator[TlsServer]:
    """Run `odradek` or `kafka` with a TLS listener in `directory` for the block."""
    directory.mkdir(parents=True, exist_ok=True)
    authority, own = make_certificates(directory)
    port, controller, tls = free_ports(3)
    listeners = f"SSL://127.0.0.1:{tls},PLAINTEXT://127.0.0.1:{port}"
    settings = {
        **combined_node_properties(directory, port, controller),
        **FAST_DELETION,
        "listeners": f"CONTROLLER://127.0.0.1:{controller},{listeners}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "SSL:SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(own),
    }
    start = start_odradek if key == "odradek" else start_kafka
    server = start(directory, port=port, settings=settings, cpus=cpus)
    try:
        yield TlsServer(key, server, f"127.0.0.1:{tls}", authority)
    finally:
        server.kill()


@attrs.frozen
class Driven:
    """Requests per second, and the number of CPUs that the server used for them. If it used less than one CPU, the
    client was the bottleneck.
    """

    per_second: float
    cpus: float

    @property
    def cpu_us(self) -> float:
        """The CPU microseconds of the server for one request."""
        return self.cpus / self.per_second * 1e6


@attrs.define
class TlsBench:
    """All measurements of TLS: servers, options, and results."""

    options: argparse.Namespace
    servers: Sequence[TlsServer]
    directory: Path
    found: dict[str, Any] = attrs.field(factory=dict)

    def say(self, text: str) -> None:
        """Show progress on standard error."""
        print(text, file=sys.stderr, flush=True)

    def throughput(self) -> None:
        """Measure produce and consume with librdkafka; the servers take turns."""
        quick = self.options.quick
        contenders = [
            Contender(
                each.key,
                each.process,
                each.process.log_path.with_name("data"),
                self._warm_passes(each),
                None,
                each.address,
                each.client_settings,
            )
            for each in self.servers
        ]
        with RecycledPages(self.directory, RECYCLED_BYTES // (4 if quick else 1)) as pages:
            run = Throughput(pages, contenders, self.options.passes, 1, self.say, 0.2 if quick else 1.0)
            summaries = run.run(WORKLOAD)
        print(report.throughput_table(WORKLOAD, summaries), flush=True)
        self.found["throughput"] = [attrs.asdict(each) for each in summaries]
        self.found["ratios"] = [
            {**attrs.asdict(each), "holds": each.holds} for each in report.ratios(WORKLOAD, summaries)
        ]

    def _warm_passes(self, server: TlsServer) -> int:
        return 1 if server.key == "odradek" or self.options.quick else KAFKA_WARM_PASSES

    def whole(self) -> None:
        """Measure the same batches from a client that fills its TLS records.

        librdkafka makes two TLS records of each message, so that a batch of 16 KiB arrives in 31 records. Other clients
        encrypt whole requests, and so does the client of this measurement. It keeps many requests in flight, and
        computes nothing in between.
        """
        found: dict[str, dict[str, Driven]] = {}
        for kind in (each for each in KINDS if each.name in WHOLE_KINDS):
            drives: dict[str, list[Driven]] = {}
            with ExitStack() as topics:
                for each in self.servers:
                    topics.enter_context(temporary_topic(each.process.bootstrap, _topic(kind), 1))
                    for _ in range(self._warm_passes(each)):
                        self._drive(each, kind, None, nullcontext)
                for _ in range(self.options.passes):
                    for each in self.servers:
                        drives.setdefault(each.key, []).append(self._drive(each, kind, None, nullcontext))
            found[kind.name] = {key: _median(each) for key, each in drives.items()}
            for key, driven in found[kind.name].items():
                print(
                    f"{kind.title} in full TLS records, {report.NAMES[key]}: {driven.per_second:,.0f} requests/s, "
                    f"{driven.cpu_us:.0f} us of CPU each, {driven.cpu_us * 1e3 / FETCH_BYTES:.2f} CPU-s/GB"
                )
            if "kafka" in found[kind.name]:
                ours, theirs = found[kind.name]["odradek"], found[kind.name]["kafka"]
                rate, cost = WHOLE_KINDS[kind.name]
                print(f"    rate {_verdict(ours.per_second / theirs.per_second, rate)}")
                ratio = ours.cpu_us / theirs.cpu_us
                print(f"    CPU {ratio:.2f}x, goal {cost:g}x: {'holds' if ratio <= cost else 'FAILS'}")
        self.found["whole"] = {
            kind: {key: attrs.asdict(each) for key, each in by_server.items()}
            for kind, by_server in found.items()
        }

    def clients(self) -> None:
        """Measure the server's cost for producers of other libraries, which fill TLS records in different ways.

        These clients are slower than the servers, so only the costs are compared, not the rates.
        """
        found: dict[str, dict[str, float]] = {}
        seconds = 1.5 if self.options.quick else 5.0
        for client in BY_TLS:
            costs: dict[str, list[float]] = {}
            for number in range(self.options.passes + 1):
                for each in self.servers:
                    topic = f"by-{client}-{number}"
                    with temporary_topic(each.process.bootstrap, topic, 1):
                        task = Producing(client, each.address, str(each.authority), topic, seconds)
                        figures, cpu_seconds = run_client("bench.tls.producers", task, each.process, None)
                    if number:  # The first pass only warms up.
                        sent = figures["records"] * task.value_bytes
                        costs.setdefault(each.key, []).append(cpu_seconds / sent * 1e9)
            found[client] = {key: statistics.median(each) for key, each in costs.items()}
            shown = ", ".join(f"{report.NAMES[key]} {cost:.2f}" for key, cost in found[client].items())
            print(f"producing with {client}, CPU-s/GB of the server: {shown}", flush=True)
            if "kafka" in found[client]:
                ratio = found[client]["odradek"] / found[client]["kafka"]
                print(f"    CPU {ratio:.2f}x", flush=True)
        self.found["clients_cpu_seconds_per_gb"] = found

    def handshakes(self) -> None:
        """Measure full TLSv1.3 handshakes per CPU second of the server. The client makes two handshakes at a
        time.
        """
        rates: dict[str, list[float]] = {}
        for number in range(self.options.passes + 1):
            for each in self.servers:
                task = Handshaking(each.address, str(each.authority), 300 if self.options.quick else 2_000)
                figures, cpu_seconds = run_client("bench.tls.handshakes", task, each.process, None)
                if number:  # The first pass only warms up.
                    rates.setdefault(each.key, []).append(figures["done"] / cpu_seconds)
        found = {key: statistics.median(each) for key, each in rates.items()}
        for key, rate in found.items():
            print(f"full handshakes per CPU-second, {report.NAMES[key]}: {rate:,.0f}")
        if "kafka" in found:
            print(f"    {_verdict(found['odradek'] / found['kafka'], 1.0)}")
        self.found["handshakes_per_cpu_second"] = found

    def idle(self) -> None:
        """Measure the resident memory per idle TLS connection, which has sent only ApiVersions."""
        count = 300 if self.options.quick else self.options.connections
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        for each in self.servers:
            context = ssl.create_default_context(cafile=str(each.authority))
            with ExitStack() as ending:
                ask_api_versions(ending.enter_context(open_tls_connection(each.address, context)))
                before = settled_rss_kib(each.process)
                for _ in range(count):
                    ask_api_versions(ending.enter_context(open_tls_connection(each.address, context)))
                grown = (settled_rss_kib(each.process) - before) / count
            verdict = "" if each.key == "kafka" else "holds" if grown <= IDLE_KIB_MAX else "FAILS"
            print(f"RSS per idle connection ({count}), {report.NAMES[each.key]}: {grown:.1f} KiB {verdict}")
            self.found[f"idle_kib_{each.key}"] = grown

    def flood(self) -> None:
        """Measure the requests of connected clients, with and without a flood of handshakes from another process.

        Each server has a CPU of its own, and its clients use the others. With two CPUs, the flood shares the clients'
        CPU. So it only sends one recorded ClientHello repeatedly, without computing (`bench.tls.handshakes`). The
        server then does all of a handshake except its last step, which is a tenth of the cost.
        """
        cpus = sorted(os.sched_getaffinity(0))
        with ExitStack() as ending:
            for each in self.servers:
                home = self.directory / f"pinned-{each.key}"
                pinned = ending.enter_context(tls_server(each.key, home, cpus[:1]))
                self._flood_one(pinned, cpus[1:] or None)

    def _flood_one(self, server: TlsServer, cpus: Sequence[int] | None) -> None:
        task = Handshaking(server.address, str(server.authority), 0, FLOOD_PER_SECOND, hellos=True)
        for kind in (each for each in KINDS if each.name in FLOODED_KINDS):
            found: dict[bool, list[Driven]] = {False: [], True: []}
            shaken: list[Shaken] = []
            with temporary_topic(server.process.bootstrap, _topic(kind), 1):
                for _ in range(self.options.passes + 1):
                    for is_flooded, drives in found.items():
                        during = partial(flood, task, shaken, cpus) if is_flooded else nullcontext
                        drives.append(self._drive(server, kind, cpus, during))
            # The first pass only warms up.
            alone, beside = (_median(drives[1:]) for drives in found.values())
            tried = statistics.median(each.begun / each.seconds for each in shaken)
            done = statistics.median(each.done / each.seconds for each in shaken)
            kept = beside.per_second / alone.per_second
            print(
                f"{kind.title} during {tried:,.0f} ClientHellos/s, {done:,.0f} of them answered, "
                f"{report.NAMES[server.key]}: connected clients keep {_verdict(kept, KEPT_MIN)} of their "
                f"{alone.per_second:,.0f} requests/s; the server used {alone.cpus:.2f} CPUs before the flood and "
                f"{beside.cpus:.2f} during it; {alone.cpu_us / beside.cpu_us:.2f} of its CPU time is left for them",
                flush=True,
            )
            self.found[f"flood_{kind.name}_{server.key}"] = {
                "kept": kept,
                "tried": tried,
                "done": done,
                "alone": attrs.asdict(alone),
                "beside": attrs.asdict(beside),
            }

    def _drive(
        self,
        server: TlsServer,
        kind: Kind,
        cpus: Sequence[int] | None,
        during: Callable[[], AbstractContextManager[None]],
    ) -> Driven:
        seconds = 1.5 if self.options.quick else 5.0
        address, authority = server.address, str(server.authority)
        task = Drive(kind, server.process.bootstrap, _topic(kind), seconds, address, authority)
        figures, cpu_seconds = run_client("bench.hot_path.small_requests", task, server.process, cpus, during)
        return Driven(figures["requests"] / figures["seconds"], cpu_seconds / figures["seconds"])


def _topic(kind: Kind) -> str:
    return f"driven-{kind.name}"


def _median(drives: Sequence[Driven]) -> Driven:
    return Driven(
        statistics.median(each.per_second for each in drives), statistics.median(each.cpus for each in drives)
    )


def _verdict(ratio: float, at_least: float) -> str:
    return f"{ratio:.2f}x, goal {at_least:g}x: {'holds' if ratio >= at_least else 'FAILS'}"


def main() -> None:
    """Measure, print the results, and write JSON if an option requests it."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.tls", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--only", default=",".join(MEASURES), help=f"some of {', '.join(MEASURES)}, separated by commas"
    )
    parser.add_argument("--no-kafka", action="store_true", help="do not measure Apache Kafka")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="run small passes, whose figures are too imprecise for a verdict",
    )
    parser.add_argument("--passes", type=int, help="measured passes per server (default: 5, with --quick: 2)")
    parser.add_argument(
        "--connections",
        type=int,
        default=2_000,
        metavar="N",
        help="number of idle connections whose memory is measured (default: 2000)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    options.passes = options.passes or (2 if options.quick else 5)
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(MEASURES):
        parser.error(f"unknown measurements in --only: {', '.join(sorted(unknown))}")
    keys = ["odradek"]
    if not options.no_kafka:
        try:
            ensure_jars()
            keys.append("kafka")
        except KafkaUnavailable as reason:
            print(f"Apache Kafka is SKIPPED, so there are no ratios to it: {reason}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="odradek-tls-") as name, ExitStack() as ending:
        home = Path(name)
        servers = [ending.enter_context(tls_server(key, home / key)) for key in keys]
        bench = TlsBench(options, servers, home)
        bench.found["machine"] = {"cpus": os.cpu_count(), "openssl": ssl.OPENSSL_VERSION}
        for measure in MEASURES:
            if measure in chosen:
                bench.say(measure)
                getattr(bench, measure)()
    if options.json:
        options.json.write_text(json.dumps(bench.found, indent=1) + "\n")


if __name__ == "__main__":
    main()
