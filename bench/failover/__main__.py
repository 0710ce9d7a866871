"""Measures for how long nobody serves a partition when a node dies, hangs, or is moved, beside Apache Kafka.

    python -m bench.failover [--only ROW,...] [--times N] [--clients] [--no-kafka] [--json FILE]

Three nodes, each broker and controller, with default settings, in network namespaces of their own on one machine. The
topic has one partition with three replicas. Writes with acks=all by hand give the silence of the servers alone
(`silence.py`). With `--clients`, a producer and a consumer of librdkafka with its defaults run as well (`clients.py`).
Each figure is the worst of `--times` runs. The clusters run one after the other.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs

from bench.failover.events import ROWS, Bench, Gaps, Row
from bench.report import NAMES, OURS, REFERENCE, machine
from jepsen_tests.network import Loopback, Namespaces, enter_own_network, namespaces
from jepsen_tests.real_cluster import Cluster
from jepsen_tests.systems import ApacheKafka, Odradek, Unavailable

KAFKA_HEAP = ("-Xmx768m", "-Xms768m", "-XX:+UseG1GC")
PARTS = {"servers": "servers alone", "produce": "librdkafka produces", "consume": "librdkafka consumes"}


def run(cluster: Cluster, rows: Sequence[Row], options: argparse.Namespace) -> dict[str, Gaps]:
    """Start the nodes and measure all rows. Return the worst standstills of each row, by its name."""
    cluster.prepare()
    cluster.start_all()
    bench, found = Bench(cluster), {}
    for row in rows:
        if row.needs_links and not cluster.network.can_partition:
            say(f"{row.title}: this machine has no network namespaces")
            continue
        runs = [bench.measure(row, with_clients=options.clients) for _ in range(options.times)]
        for part, title in PARTS.items():
            seconds = [each for gaps in runs if (each := getattr(gaps, part)) is not None]
            if seconds:
                say(f"{row.title}, {title}: {', '.join(f'{each:.3f}' for each in seconds)} s")
        found[row.name] = Gaps(
            max(each.servers for each in runs),
            max((each.produce for each in runs if each.produce is not None), default=None),
            max((each.consume for each in runs if each.consume is not None), default=None),
        )
    return found


def table(rows: Sequence[Row], found: dict[str, dict[str, Gaps]]) -> str:
    """Return the figures as a table in Markdown."""
    measured = [each for each in (OURS, REFERENCE) if each in found]
    parts = [
        part
        for part in PARTS
        if any(getattr(gaps, part) is not None for rows_of in found.values() for gaps in rows_of.values())
    ]
    heads = [f"{NAMES[key]}, {PARTS[part]}" for part in parts for key in measured]
    lines = [
        f"| event | {' | '.join(heads)} | goal for the servers |",
        f"| --- |{' ---: |' * len(heads)} --- |",
    ]
    for row in rows:
        cells = []
        for part in parts:
            for key in measured:
                gaps = found[key].get(row.name)
                seconds = None if gaps is None else getattr(gaps, part)
                cells.append("" if seconds is None else f"{seconds:.3f} s")
        ours = found.get(OURS, {}).get(row.name)
        verdict = "" if ours is None else ("holds" if ours.servers <= row.goal else "**missed**")
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
    parser.add_argument("--clients", action="store_true", help="measure clients of librdkafka, too; a dead host costs them up to a minute")  # fmt: skip
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
    found: dict[str, dict[str, Gaps]] = {}
    has_links = enter_own_network()
    with tempfile.TemporaryDirectory(prefix="bench-failover-") as name:
        for key, system in systems:
            network: Loopback | Namespaces = namespaces((1, 2, 3)) if has_links else Loopback()
            cluster = Cluster(system, network, Path(name) / key)
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
        figures = {
            key: {name: attrs.asdict(each) for name, each in rows_of.items()}
            for key, rows_of in found.items()
        }
        options.json.write_text(json.dumps({"machine": machine(), "seconds": figures}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
