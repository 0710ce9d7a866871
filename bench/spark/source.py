"""Measures the rows per second that Spark reads from topics: by our source, Spark's connector, and an empty Python
source.

    python -m bench.spark.source [--rows 2000000] [--long-rows 8000000] [--rounds 3] [--warm 1]
        [--server odradek|kafka] [--only TEXT] [--latency-seconds 30]

There is one session (local[2]). The formats take turns; figures are medians, without the first rounds. A streaming
query is also measured with more rows, so that its start matters less. The empty source yields one prepared Arrow
batch repeatedly, and so shows the highest rate possible in Python. For latency, records are written one by one, 1,000
per second. Their age is measured when a micro-batch with the default trigger receives them. The connector's jars come
from Maven.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from odradek import Producer
from odradek.client.admin import NewTopic
from odradek.client.shells.blocking import Client
from odradek.spark.decode import SCHEMA
from odradek.spark.source import schema
from odradek.spark.worker_process import worker_python
from testkit.kafka_server import KafkaUnavailable, kafka_server
from testkit.odradek_server import odradek_server
from testkit.processes import ServerProcess
from testkit.spark_jars import spark_jars

PARTITIONS = 4
SIZES = (100, 1024)
RATE = 1000
WAYS = ("batch -> noop", "batch -> sum(length(value))", "batch -> Parquet", "AvailableNow -> noop")
_BATCH_ROWS = 10_000


class _Ready(DataSource):
    """A Spark source of `rows` rows in `tasks` tasks: each task repeats one Arrow batch."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> StructType:
        return schema({"kafka.bootstrap.servers": "none:1", "subscribe": "none"})

    def reader(self, schema: StructType) -> DataSourceReader:
        return _ReadyReader(dict(self.options))


class _ReadyReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.rows = int(options["rows"]) // PARTITIONS
        self.size = int(options["size"])

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        count = _BATCH_ROWS
        columns = [
            pa.array([None] * count, pa.binary()),
            pa.array([b"x" * self.size] * count, pa.binary()),
            pa.array(["ready"] * count, pa.string()),
            pa.array([partition.value] * count, pa.int32()),
            pa.array(range(count), pa.int64()),
            pa.array([0] * count, pa.timestamp("us", tz="UTC")),
            pa.array([0] * count, pa.int32()),
        ]
        ready = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        for _ in range(self.rows // count):
            yield ready


def session(jars: str | None) -> SparkSession:
    """Start a Spark session on local[2] with little output."""
    os.environ["PYSPARK_PYTHON"] = worker_python()
    # Bytecode is written as for installed packages, even if this shell forbids it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.log.level", "ERROR").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.driver.memory", "2g").config("spark.sql.shuffle.partitions", "2")
    # As docs/spark.md says: over TCP, each task of Python waits 40 ms for a delayed acknowledgement.
    builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    if jars is not None:
        builder = builder.config("spark.jars", jars)
    spark: SparkSession = builder.getOrCreate()
    return spark


def fill(spark: SparkSession, bootstrap: str, topic: str, rows: int, size: int) -> None:
    """Create a topic, and fill it by our sink with `rows` rows whose values have `size` bytes."""
    with Client(bootstrap) as client:
        client.admin.create_topics([NewTopic(topic, PARTITIONS)])
    frame = spark.range(rows).selectExpr(
        f"rpad(cast(id as string), {size}, 'x') as value", f"cast(id % {PARTITIONS} as int) as partition"
    )
    options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
    frame.write.format("odradek").options(**options).mode("append").save()


class Bench:
    """Queries that read one topic, by batch and by stream."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, rows: int, size: int) -> None:
        self.spark = spark
        self.options = {
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "rows": str(rows),
            "size": str(size),
        }
        ways: tuple[Callable[[str], None], ...] = (self._noop, self._sum, self._parquet, self._available_now)
        self.ways = dict(zip(WAYS, ways, strict=True))

    def batch(self, which: str) -> DataFrame:
        """Return a batch query of all columns, in the format `which`."""
        return self.spark.read.format(which).options(**self.options).load()

    def _noop(self, which: str) -> None:
        self.batch(which).write.format("noop").mode("overwrite").save()

    def _sum(self, which: str) -> None:
        self.batch(which).selectExpr("sum(length(value))").collect()

    def _parquet(self, which: str) -> None:
        with tempfile.TemporaryDirectory() as place:
            self.batch(which).write.parquet(f"{place}/out")

    def _available_now(self, which: str) -> None:
        with tempfile.TemporaryDirectory() as place:
            frame = self.spark.readStream.format(which).options(**self.options).load()
            writer = frame.writeStream.format("noop").option("checkpointLocation", place)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            failure = query.exception()
            if failure is not None:
                raise failure


def throughput(
    spark: SparkSession, bootstrap: str, formats: list[str], arguments: argparse.Namespace
) -> dict[tuple[int, int, str], dict[str, float]]:
    """Measure and print a table for each size. Return rows per second by (bytes, rows, kind of query), and then by
    format.
    """
    small, large = SIZES
    measured: dict[tuple[int, int, str], dict[str, float]] = {}
    tables = [(small, arguments.rows, ""), (large, arguments.rows // 4, "")]
    if arguments.long_rows:
        tables.insert(1, (small, arguments.long_rows, "Available"))
    for size, rows, only in tables:
        if not any(only in name and arguments.only in name for name in WAYS):
            continue
        topic = f"bench-{size}-{rows}"
        fill(spark, bootstrap, topic, rows, size)
        bench = Bench(spark, bootstrap, topic, rows, size)
        print(f"\n{rows:,} rows of {size} B, thousand rows/s (ours over the JVM connector)")
        for name, way in bench.ways.items():
            if arguments.only not in name or only not in name:
                continue
            usable = [each for each in formats if each != "ready" or "Available" not in name]
            found: dict[str, list[float]] = {each: [] for each in usable}
            for number in range(arguments.warm + arguments.rounds):
                for each in usable:
                    started = time.perf_counter()
                    way(each)
                    if number >= arguments.warm:
                        found[each].append(rows / (time.perf_counter() - started))
            medians = {each: statistics.median(values) for each, values in found.items()}
            measured[size, rows, name] = medians
            figures = "  ".join(f"{each} {medians[each] / 1000:8.0f}" for each in usable)
            ratio = f"  {medians['odradek'] / medians['kafka']:.2f}x" if "kafka" in medians else ""
            print(f"{name:28} {figures}{ratio}", flush=True)
    return measured


def latency(spark: SparkSession, bootstrap: str, formats: list[str], seconds: float) -> dict[str, float]:
    """Measure and print the age of records when a micro-batch receives them. Return the medians in milliseconds, by
    format.
    """
    medians: dict[str, float] = {}
    for which in formats:
        if which == "ready":
            continue
        topic = f"latency-{which}"
        with Client(bootstrap) as client:
            client.admin.create_topics([NewTopic(topic, PARTITIONS)])
        ages: list[float] = []
        warm = time.time() + 10

        def take(rows: DataFrame, _: int, ages: list[float] = ages, warm: float = warm) -> None:
            sent = [row[0] for row in rows.selectExpr("unix_millis(timestamp)").collect()]
            now = time.time()
            if now > warm:
                ages.extend(now * 1000 - each for each in sent)

        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
        with tempfile.TemporaryDirectory() as place:
            frame = spark.readStream.format(which).options(**options).load()
            query = frame.writeStream.foreachBatch(take).option("checkpointLocation", place).start()
            with Producer(bootstrap_servers=bootstrap, linger_ms=0) as producer:
                over = threading.Event()
                threading.Timer(10 + seconds, over.set).start()
                sent, begun = 0, time.perf_counter()
                while not over.is_set():
                    due = int((time.perf_counter() - begun) * RATE)
                    for number in range(sent, due):
                        producer.send(topic, value=b"x" * 100, partition=number % PARTITIONS)
                    sent = due
                    over.wait(0.005)
            batches = sum(1 for each in query.recentProgress if each.numInputRows)
            # Avoid stopping a query inside `take`: it would print a StackOverflowError, because Spark matches
            # the long message of the interrupted call with a regular expression that recurses at every
            # character.
            query.processAllAvailable()
            query.stop()
        ages.sort()
        if not ages:
            print(f"{which}: no latency, since the query received no record")
            continue
        p50, p99 = ages[len(ages) // 2], ages[int(len(ages) * 0.99)]
        medians[which] = p50
        print(
            f"age of records in micro-batches at {RATE:,} msg/s, {which}: p50 {p50:.0f} ms, p99 {p99:.0f} ms (the last "
            f"{batches} batches)"
        )
    return medians


def memory(spark: SparkSession) -> list[float]:
    """Return the proportional set sizes, in MiB, of the Python processes below this session's Java process."""
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]  # neither is None with a local Spark
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    below = {java}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    sizes = []
    for pid in below - {java}:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            sizes.append(next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024)
    print(f"{len(sizes)} Python processes, {max(sizes):.0f} MiB the largest, {sum(sizes):.0f} MiB all (PSS)")
    return sizes


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", type=int, default=2_000_000, help="rows of 100 B; with rows of 1 KiB, a quarter"
    )
    parser.add_argument(
        "--long-rows",
        type=int,
        default=8_000_000,
        help="rows of 100 B for a longer streaming query with AvailableNow; 0: no such query",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=int, default=1, help="first rounds that are not counted (default: 1)")
    parser.add_argument("--server", choices=("odradek", "kafka"), default="odradek")
    parser.add_argument("--only", default="", help="measure only formats whose names contain this text")
    parser.add_argument(
        "--latency-seconds",
        type=float,
        default=30.0,
        help="length of the latency measurement (default: 30; 0: do not measure latency)",
    )
    return parser


def main() -> None:
    """Measure, and print the tables."""
    arguments = parser().parse_args()
    formats: list[Any] = ["odradek", "ready"]
    jars: str | None = None
    try:
        jars = spark_jars()
        formats.insert(1, "kafka")
    except KafkaUnavailable as reason:
        print(f"Spark's JVM connector is not measured: {reason}", file=sys.stderr)
    starting: AbstractContextManager[ServerProcess] = (
        kafka_server() if arguments.server == "kafka" else odradek_server()
    )
    with starting as server:
        spark = session(jars)
        spark.dataSource.register(_Ready)
        throughput(spark, server.bootstrap, formats, arguments)
        if arguments.latency_seconds:
            latency(spark, server.bootstrap, formats, arguments.latency_seconds)
        memory(spark)
        spark.stop()


if __name__ == "__main__":
    main()
