"""Compares the times of two batch queries over the same rows: in 1,000 small partitions, and in one partition.

    python -m bench.spark.partitions [--rows 50000] [--rounds 5] [--server odradek|kafka]

There is one session (local[2]). The topics take turns; figures are medians, without the first two rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import AbstractContextManager

from pyspark.sql import SparkSession

from bench.spark.source import session
from odradek import Producer
from odradek.client.admin import NewTopic
from odradek.client.shells.blocking import Client
from testkit.kafka_server import kafka_server
from testkit.odradek_server import odradek_server
from testkit.processes import ServerProcess

MANY = 1000
_WARM = 2
_VALUE_BYTES = 100


def _fill(bootstrap: str, topic: str, partitions: int, rows: int) -> None:
    with Client(bootstrap, timeout_ms=120_000) as client:
        [created] = client.admin.create_topics([NewTopic(topic, partitions)])
        if created.error is not None:
            raise created.error
    with Producer(bootstrap_servers=bootstrap, linger_ms=50) as producer:
        for number in range(rows):
            producer.send(topic, b"x" * _VALUE_BYTES, partition=number * partitions // rows)


def measure(spark: SparkSession, server: ServerProcess, rows: int, rounds: int) -> dict[int, float]:
    """Return the median seconds of a query, by the number of partitions."""
    found: dict[int, list[float]] = {1: [], MANY: []}
    for partitions in found:
        _fill(server.bootstrap, f"partitions-{partitions}", partitions, rows)
    for number in range(_WARM + rounds):
        for partitions, seconds in found.items():
            reader = spark.read.format("odradek").option("kafka.bootstrap.servers", server.bootstrap)
            began = time.perf_counter()
            frame = reader.option("subscribe", f"partitions-{partitions}").load()
            [row] = frame.selectExpr("count(value)").collect()
            assert row[0] == rows
            if number >= _WARM:
                seconds.append(time.perf_counter() - began)
    return {partitions: statistics.median(seconds) for partitions, seconds in found.items()}


def main() -> None:
    """Measure and print both times."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--server", choices=("odradek", "kafka"), default="odradek")
    arguments = parser.parse_args()
    starting: AbstractContextManager[ServerProcess] = (
        kafka_server() if arguments.server == "kafka" else odradek_server()
    )
    with starting as server:
        spark = session(None)
        found = measure(spark, server, arguments.rows, arguments.rounds)
        spark.stop()
    one, many = found[1], found[MANY]
    print(
        f"{arguments.rows:,} rows of {_VALUE_BYTES} B: one partition {one:.3f} s, {MANY:,} partitions {many:.3f} s,"
        f" {many / one:.2f} times as long"
    )


if __name__ == "__main__":
    main()
