"""Measures the cost of `flush.messages`, by the same records in topics with and without this setting, on one node.

    python -m bench.throughput.synced [--passes 3] [--records 100000]

Each pass produces with librdkafka and acks=all: first with many records in flight, then one record at a time. The
topics differ only in `flush.messages` and take turns, so a slow minute of the machine affects all of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import confluent_kafka

from bench.instruments.supervised import run_client
from bench.throughput.client import Pass
from bench.throughput.passes import temporary_topic
from testkit.odradek_server import start_odradek
from testkit.processes import ServerProcess

CHOICES = {"not set": None, "1000": "1000", "1": "1"}
"""The values of `flush.messages`, by the name in the table."""
PARTITIONS = 6
VALUE_BYTES = 1024
SINGLES = 200
"""The number of records that are sent one at a time, each after the previous acknowledgement."""
BATCHES = {"batch.size": 16384, "linger.ms": 5}
STALL_SECONDS = 30.0


def pipelined(server: ServerProcess, topic: str, records: int) -> float:
    """Produce with many records in flight. Return the messages per second."""
    task = Pass(
        action="produce",
        bootstrap=server.bootstrap,
        topic=topic,
        partitions=PARTITIONS,
        records=records,
        value_bytes=VALUE_BYTES,
        compressible=False,
        client_settings=BATCHES,
    )
    figures, _ = run_client("bench.throughput.client", task, server, None)
    return records / float(figures["seconds"])


def one_at_a_time(server: ServerProcess, topic: str) -> float:
    """Produce one record after the other. Return the median milliseconds until the acknowledgement."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": server.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 3}
    )
    value = bytes(VALUE_BYTES)
    times = []
    for serial in range(SINGLES):
        began = time.perf_counter()
        producer.produce(topic, value, partition=serial % PARTITIONS)
        if producer.flush(STALL_SECONDS):
            raise TimeoutError("no answer")
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--records", type=int, default=100_000)
    arguments = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in CHOICES}
    waits: dict[str, list[float]] = {name: [] for name in CHOICES}
    with tempfile.TemporaryDirectory(prefix="odradek-synced-") as folder:
        server = start_odradek(Path(folder))
        try:
            for serial in range(arguments.passes):
                for name, value in CHOICES.items():
                    topic = f"synced-{serial}-{value}"
                    config = {} if value is None else {"flush.messages": value}
                    with temporary_topic(server.bootstrap, topic, PARTITIONS, config):
                        rates[name].append(pipelined(server, topic, arguments.records))
                        waits[name].append(one_at_a_time(server, topic))
                    print(
                        f"pass {serial + 1}: flush.messages {name}: {rates[name][-1]:,.0f}/s, {waits[name][-1]:.2f} ms"
                    )
        finally:
            server.kill()
    print(f"load {os.getloadavg()[0]:.1f} at the end, {os.cpu_count()} cores")
    print("| `flush.messages` | messages/s | one record, ms |\n| --- | ---: | ---: |")
    for name in CHOICES:
        print(f"| {name} | {statistics.median(rates[name]):,.0f} | {statistics.median(waits[name]):.2f} |")


if __name__ == "__main__":
    main()
