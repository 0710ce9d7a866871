"""Compares our client with kafka-python, aiokafka and confluent-kafka, on one server: `python -m bench.clients`.

Every pass is a separate process, and the clients take turns. Each producer writes to a new topic with one partition;
consumers read one topic with four partitions repeatedly. Figures are medians; `x` is our rate divided by the rate of
the other client. CPU is the client's own, in microseconds per record.

    python -m bench.clients                      # produce and consume at 100 B and 1 KiB on our node
    python -m bench.clients --actions consume
    python -m bench.clients --server kafka       # the same on Apache Kafka
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from bench.clients.consumers import CONSUMERS, PARTITIONS
from bench.clients.producers import PRODUCERS
from bench.instruments.loopback import enter_own_network
from odradek.client.admin import NewTopic
from odradek.client.shells.blocking import Client
from testkit.kafka_server import kafka_server
from testkit.odradek_server import odradek_server

OURS = "odradek"
PURE_PYTHON = ("kafka-python", "aiokafka")
TOPIC_BYTES = 64 << 20
RATIO_MIN = 1.5
"""The goal for our rate, divided by the rate of the fastest client in pure Python."""


@attrs.frozen
class Figure:
    """The result of one client for one action."""

    client: str
    action: str
    value_bytes: int
    records_per_second: float
    cpu_microseconds: float
    passes: int


def main() -> None:
    """Measure, print a table, and write JSON if an option requests it."""
    options = parse_arguments()
    if options.run:
        run_one(*options.run)
        return
    if options.small_segments and not enter_own_network():
        print("This machine allows no network namespace, so the host's loopback is used.", file=sys.stderr)
    figures: list[Figure] = []
    with server(options.server) as bootstrap:
        for size in options.sizes:
            if "produce" in options.actions:
                clients = [name for name in PRODUCERS if name in options.clients]
                figures += produce(bootstrap, size, options.passes, options.seconds, clients)
        for size in options.sizes:
            if "consume" in options.actions:
                clients = [name for name in CONSUMERS if name in options.clients]
                figures += consume(bootstrap, size, options.passes, options.seconds, clients)
    print_table(figures)
    if options.json:
        found = {
            "server": options.server,
            "cpus": os.cpu_count(),
            "figures": [attrs.asdict(f) for f in figures],
        }
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def parse_arguments() -> argparse.Namespace:
    """Parse the command line: the measurements to make."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.clients", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--server", choices=("odradek", "kafka"), default="odradek")
    parser.add_argument("--sizes", type=_sizes, default=(100, 1024), metavar="BYTES,BYTES")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a pass (default: 2)")
    parser.add_argument(
        "--clients",
        type=lambda text: text.split(","),
        default=list(dict.fromkeys([*PRODUCERS, *CONSUMERS])),
    )
    parser.add_argument("--actions", type=lambda text: text.split(","), default=["produce", "consume"])
    parser.add_argument(
        "--small-segments",
        action="store_true",
        help="run in a network namespace whose loopback has segments of 8 KiB, since on some kernels the usual large "
        "segments delay answers (see bench.instruments.loopback)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--run", nargs=6, help=argparse.SUPPRESS)
    return parser.parse_args()


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


@contextmanager
def server(name: str) -> Iterator[str]:
    """Run a new server for the block, and yield its address."""
    with kafka_server() if name == "kafka" else odradek_server() as running:
        yield running.bootstrap


def run_one(action: str, name: str, bootstrap: str, topic: str, size: str, seconds: str) -> None:
    """Run one pass in this process, and print its result as JSON."""
    if action == "consume":
        records, elapsed, cpu = CONSUMERS[name](bootstrap, topic, records_of(int(size)), float(seconds))
        print(json.dumps({"records": records, "seconds": elapsed, "cpu": cpu}))
        return
    value = os.urandom(int(size))
    cpu = time.process_time()
    count, elapsed = PRODUCERS[name](bootstrap, topic, value, float(seconds))
    print(json.dumps({"records": count, "seconds": elapsed, "cpu": time.process_time() - cpu}))


def produce(bootstrap: str, size: int, passes: int, seconds: float, clients: list[str]) -> list[Figure]:
    """Measure all producers in turn, `passes` times."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in clients}
    for number in range(passes):
        for name in clients:
            with topic_for(bootstrap, f"{name}-{size}-{number}") as topic:
                found[name].append(in_a_process("produce", name, bootstrap, topic, str(size), str(seconds)))
    return [_figure(name, "produce", size, results) for name, results in found.items()]


def records_of(size: int) -> int:
    """Return the number of records in the topic that consumers read, for values of this size."""
    return TOPIC_BYTES // (size + 100)


def consume(bootstrap: str, size: int, passes: int, seconds: float, clients: list[str]) -> list[Figure]:
    """Measure all consumers in turn on one topic, `passes` times."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in clients}
    with topic_for(bootstrap, f"consume-{size}", PARTITIONS) as topic:
        fill(bootstrap, topic, size)
        for _ in range(passes):
            for name in clients:
                found[name].append(in_a_process("consume", name, bootstrap, topic, str(size), str(seconds)))
    return [_figure(name, "consume", size, results) for name, results in found.items()]


def fill(bootstrap: str, topic: str, size: int) -> None:
    """Fill a topic's partitions, in batches of 16 KiB, as busy Java producers make them."""
    from confluent_kafka import Producer

    producer: Any = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.size": 16384})
    values = [os.urandom(size) for _ in range(64)]
    for number in range(records_of(size)):
        while True:
            try:
                producer.produce(topic, values[number % 64], partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.01)
    if producer.flush(60):
        raise SystemExit("the topic could not be filled")


def in_a_process(*arguments: str) -> dict[str, Any]:
    """Run a pass in another process, and return its result."""
    command = [sys.executable, "-m", "bench.clients", "--run", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@contextmanager
def topic_for(bootstrap: str, name: str, partitions: int = 1) -> Iterator[str]:
    """Create a topic for the block, and delete it afterwards."""
    with Client(bootstrap) as client:
        (created,) = client.admin.create_topics([NewTopic(name, partitions)])
        if created.error is not None:
            raise created.error
        try:
            yield name
        finally:
            client.admin.delete_topics([name])


def _figure(name: str, action: str, size: int, results: list[dict[str, Any]]) -> Figure:
    return Figure(
        name,
        action,
        size,
        statistics.median(each["records"] / each["seconds"] for each in results),
        statistics.median(each["cpu"] / each["records"] * 1e6 for each in results),
        len(results),
    )


def print_table(figures: list[Figure]) -> None:
    """Print the table, and whether the goal is met."""
    print(f"{'':10} {'client':16} {'records/s':>10} {'MB/s':>7} {'CPU us':>7} {'Odradek x':>9}")
    for action, size in dict.fromkeys((f.action, f.value_bytes) for f in figures):
        some = [f for f in figures if (f.action, f.value_bytes) == (action, size)]
        ours = next((f for f in some if f.client == OURS), None)
        for each in some:
            ratio = f"{ours.records_per_second / each.records_per_second:9.2f}" if ours else ""
            rate = each.records_per_second
            print(
                f"{action:8}{size:>5} B {each.client:15} {rate:>8,.0f} {rate * size / 1e6:>7.1f} "
                f"{each.cpu_microseconds:>7.2f} {ratio}"
            )
        others = [f.records_per_second for f in some if f.client in PURE_PYTHON]
        if ours is not None and others:
            ratio_found = ours.records_per_second / max(others)
            verdict = "holds" if ratio_found >= RATIO_MIN else "FAILS"
            print(
                f"    {ratio_found:.2f} x the faster of {', '.join(PURE_PYTHON)}; goal {RATIO_MIN}: {verdict}"
            )


if __name__ == "__main__":
    main()
