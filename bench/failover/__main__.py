"""Measures for how long nobody serves when a node dies, hangs, or is moved, beside Apache Kafka.

    python -m bench.failover [--only ROW,...] [--times N] [--clients KIND,...] [--no-kafka] [--json FILE]

Three nodes, each broker and controller, with default settings and two log directories, in network namespaces of their
own on one machine. Requests by hand give the silence of the servers alone (`silence.py`); most rows write with acks=all
to one partition with three replicas. With `--clients`, clients run as well: `librdkafka` or `java` (a producer and a
consumer with their library's defaults), `group` (ten consumers), `transactions`. Each figure is the worst of `--times`
runs. The clusters run one after the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.failover.bench import SERVERS, Bench, Row
from bench.failover.coordinated import Group, Transactions
from bench.failover.events import ROWS
from bench.failover.java import Java
from bench.failover.watches import Librdkafka, Watch
from bench.report import NAMES, OURS, REFERENCE, machine
from jepsen_tests.network import Loopback, Namespaces, enter_own_network, namespaces
from jepsen_tests.real_cluster import Cluster
from jepsen_tests.systems import ApacheKafka, Odradek, Unavailable

DISKS = 2
KAFKA_HEAP = ("-Xmx768m", "-Xms768m", "-XX:+UseG1GC")
WATCHES: Mapping[str, type[Watch]] = {
    "librdkafka": Librdkafka,
    "java": Java,
    "group": Group,
    "transactions": Transactions,
}
PARTS = {SERVERS: "servers alone"} | {
    part: title for watch in WATCHES.values() for part, title in watch.parts.items()
}
Found = dict[str, dict[str, float]]
"""The longest standstills in seconds, by row and part."""


def run(cluster: Cluster, rows: Sequence[Row], options: argparse.Namespace) -> Found:
    """Start the nodes and measure all rows. Return the worst standstills of each row, by its name."""
    cluster.prepare()
    cluster.start_all()
    bench, found = Bench(cluster), Found()
    watches = {name: WATCHES[name] for name in options.clients}
    for row in rows:
        if row.needs_links and not cluster.network.can_partition:
            say(f"{row.title}: this machine has no network namespaces")
            continue
        runs = [bench.measure(row, watches) for _ in range(options.times)]
        for part in runs[0]:
            seconds = sorted(gaps[part] for gaps in runs)
            middle = "" if len(seconds) < 3 else f", median {statistics.median(seconds):.3f} s"
            say(f"{row.title}, {PARTS[part]}: worst {seconds[-1]:.3f} s{middle}")
        found[row.name] = {part: max(gaps[part] for gaps in runs) for part in runs[0]}
    return found


def table(rows: Sequence[Row], found: Mapping[str, Found]) -> str:
    """Return the figures as a table in Markdown."""
    measured = [each for each in (OURS, REFERENCE) if each in found]
    parts = [part for part in PARTS if any(part in gaps for each in found.values() for gaps in each.values())]
    heads = [f"{NAMES[key]}, {PARTS[part]}" for part in parts for key in measured]
    lines = [
        f"| event | {' | '.join(heads)} | goal for the servers |",
        f"| --- |{' ---: |' * len(heads)} --- |",
    ]
    for row in rows:
        gaps = {key: found[key].get(row.name, {}) for key in measured}
        cells = [
            f"{gaps[key][part]:.3f} s" if part in gaps[key] else "" for part in parts for key in measured
        ]
        ours = gaps.get(OURS, {}).get(SERVERS)
        verdict = "" if ours is None else ("holds" if ours <= row.goal else "**missed**")
        lines.append(f"| {row.title} | {' | '.join(cells)} | {row.goal:g} s: {verdict} |")
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
    parser.add_argument("--clients", type=lambda text: text.split(","), default=[], help=f"measure clients, too: some of {', '.join(WATCHES)}; a dead host costs them up to a minute")  # fmt: skip
    parser.add_argument("--no-kafka", action="store_true", help="do not measure Apache Kafka")
    parser.add_argument("--no-odradek", action="store_true", help="do not measure our nodes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    options = parser.parse_args()
    if unknown := [each for each in options.only if each not in names]:
        parser.error(f"unknown row {unknown[0]!r} in --only")
    if unknown := [each for each in options.clients if each not in WATCHES]:
        parser.error(f"unknown clients {unknown[0]!r} in --clients")
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
    found: dict[str, Found] = {}
    has_links = enter_own_network()
    with tempfile.TemporaryDirectory(prefix="bench-failover-") as name:
        for key, system in systems:
            network: Loopback | Namespaces = namespaces((1, 2, 3)) if has_links else Loopback()
            cluster = Cluster(system, network, Path(name) / key, disks=DISKS)
            try:
                say(f"{NAMES[key]}:")
                found[key] = run(cluster, rows, options)
            except Unavailable as missing:
                say(f"{NAMES[key]} cannot be measured: {missing}")
            finally:
                cluster.close()
                network.close()
    print(table(rows, found))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "seconds": found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
