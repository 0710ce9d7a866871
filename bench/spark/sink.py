"""Measures the rows per second that Spark writes to a topic: by our sink in both modes, Spark's connector, and an
empty Python sink.

    python -m bench.spark.sink [--rows 1000000] [--rounds 3] [--server odradek|kafka]

There is one session (local[2]). The variants take turns; figures are medians. Rows come from `range`, with a value of
about 100 bytes and no key. The empty sink discards Spark's Arrow batches, and so shows the highest rate possible in
Python. The connector's jars come from Maven.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from odradek.client.admin import NewTopic
from odradek.client.shells.blocking import Client
from odradek.spark.worker_process import worker_python
from testkit.kafka_server import KafkaUnavailable, kafka_server
from testkit.odradek_server import odradek_server
from testkit.processes import ServerProcess
from testkit.spark_jars import spark_jars

PARTITIONS = 4
LARGE = {"kafka.linger.ms": "50", "kafka.batch.size": "262144"}
"""Settings that help the JVM connector most. Our sink makes batches of this size without them."""


class _Nothing(DataSource):
    """A Spark sink that discards all rows."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return _NothingWriter()


class _NothingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


def write(frame: DataFrame, format: str, options: Mapping[str, str]) -> float:
    """Write the rows once in this format, and return the seconds that it took."""
    started = time.perf_counter()
    frame.write.format(format).options(**options).mode("append").save()
    return time.perf_counter() - started


def session(jars: str | None) -> SparkSession:
    """Start a Spark session on local[2] with little output."""
    os.environ["PYSPARK_PYTHON"] = worker_python()
    # Bytecode is written as for installed packages, even if this shell forbids it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.log.level", "ERROR").config("spark.ui.showConsoleProgress", "false")
    if jars is not None:
        builder = builder.config("spark.jars", jars)
    spark: SparkSession = builder.config("spark.driver.memory", "1g").getOrCreate()
    return spark


EXACTLY_ONCE, AT_LEAST_ONCE, CONNECTOR = "odradek, exactly once", "odradek, at least once", "JVM connector"


def measure(
    spark: SparkSession, rows: int, rounds: int, server: ServerProcess, *, with_connector: bool
) -> dict[str, list[float]]:
    """Return the rows per second of each variant, for each round except the first."""
    with Client(server.bootstrap) as client:
        client.admin.create_topics([NewTopic("bench", PARTITIONS)])
    spark.dataSource.register(_Nothing)
    frame = spark.range(rows).selectExpr("rpad(cast(id as string), 100, 'x') as value")
    options = {"kafka.bootstrap.servers": server.bootstrap, "topic": "bench"}
    at_least_once = {**options, "delivery": "at-least-once"}
    ways: dict[str, Callable[[], float]] = {
        EXACTLY_ONCE: lambda: write(frame, "odradek", options),
        AT_LEAST_ONCE: lambda: write(frame, "odradek", at_least_once),
    }
    if with_connector:
        ways[CONNECTOR] = lambda: write(frame, "kafka", options)
        ways["JVM connector, linger 50 ms, 256 KiB"] = lambda: write(frame, "kafka", {**options, **LARGE})
    ways["ceiling"] = lambda: write(frame, "nothing", {})
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            seconds = way()
            if number:
                found[name].append(rows / seconds)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", choices=("odradek", "kafka"), default="odradek")
    arguments = parser.parse_args()
    try:
        jars: str | None = spark_jars()
    except KafkaUnavailable as reason:
        print(f"Spark's JVM connector is not measured: {reason}", file=sys.stderr)
        jars = None
    starting: AbstractContextManager[ServerProcess] = (
        kafka_server() if arguments.server == "kafka" else odradek_server()
    )
    with starting as server:
        spark = session(jars)
        found = measure(spark, arguments.rows, arguments.rounds, server, with_connector=jars is not None)
        spark.stop()
    ours = statistics.median(found[EXACTLY_ONCE])
    print(
        f"{arguments.rows:,} rows of 100 bytes to {server.name}, {PARTITIONS} partitions, medians of {arguments.rounds}"
    )
    for name, speeds in found.items():
        median = statistics.median(speeds)
        print(f"  {name:38}{median:>12,.0f} rows/s   exactly once is {ours / median:.2f} times that")


if __name__ == "__main__":
    main()
