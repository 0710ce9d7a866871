"""Measures the CPU of a whole streaming job that writes exactly once, over that of the same job at least once.

    python -m bench.spark.whole_streams [--quick]

The job reads Parquet files, which needs no Python, and writes their rows into a topic. Each micro-batch has 4 tasks of
10,000 rows of 1 KiB. The CPU is that of Spark's Java process, of its Python processes, and of the node. `costs.py` measures
the sink's writers without Spark.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.parquet as parquet
from pyspark.sql import SparkSession

from bench.spark.costs import values_of
from bench.spark.micro_batches import spark_seconds
from bench.spark.sink import session
from odradek.client.admin import NewTopic
from odradek.client.shells.blocking import Client
from testkit.odradek_server import odradek_server
from testkit.processes import ServerProcess

_TASKS = 4
_ROWS, _ROW_BYTES = 10_000, 1024
_BATCHES = 6
_WARM = 2
"""The first pairs, which are not counted: Java compiles what runs often."""
_TOPIC = "whole-streams"


@attrs.frozen
class Spent:
    """CPU seconds of a job: of Java, of the Python processes, and of the node."""

    java: float
    python: float
    node: float

    @property
    def ours(self) -> float:
        """Return the seconds that are not Java's."""
        return self.python + self.node

    @property
    def whole(self) -> float:
        """Return all seconds."""
        return self.java + self.ours


def main() -> None:
    """Run the job in turns, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only check that the benchmark runs")
    arguments = parser.parse_args()
    warm, pairs, batches = (0, 1, 1) if arguments.quick else (_WARM, 5, _BATCHES)
    with odradek_server() as server, tempfile.TemporaryDirectory() as folder:
        with Client(server.bootstrap) as client:
            client.admin.create_topics([NewTopic(_TOPIC, _TASKS)])
        files = Path(folder) / "rows"
        _write_files(files, batches)
        spark = session(None)
        try:
            turns = [_turn(spark, server, files, Path(folder) / f"{turn}") for turn in range(warm + pairs)]
        finally:
            spark.stop()
    _show(turns[warm:])


def _write_files(files: Path, batches: int) -> None:
    files.mkdir()
    values = pa.table({"value": values_of(_ROW_BYTES, _ROWS)})
    for number in range(batches * _TASKS):
        parquet.write_table(values, files / f"{number:03}.parquet", compression="none")


def _turn(spark: SparkSession, server: ServerProcess, files: Path, folder: Path) -> tuple[Spent, Spent]:
    once = _run(spark, server, files, "exactly-once", f"{folder}-once")
    return once, _run(spark, server, files, "at-least-once", f"{folder}-least")


def _run(spark: SparkSession, server: ServerProcess, files: Path, delivery: str, checkpoint: str) -> Spent:
    (java, python), node = spark_seconds(), server.cpu_seconds()
    rows = spark.readStream.schema("value binary").option("maxFilesPerTrigger", _TASKS).parquet(str(files))
    options = {"kafka.bootstrap.servers": server.bootstrap, "topic": _TOPIC, "delivery": delivery}
    writer = rows.writeStream.format("odradek").options(**options).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    now_java, now_python = spark_seconds()
    spent = Spent(now_java - java, now_python - python, server.cpu_seconds() - node)
    print(f"  {delivery:13}  java {spent.java:6.2f}  python {spent.python:6.2f}  node {spent.node:6.2f}")
    return spent


def _show(turns: Sequence[tuple[Spent, Spent]]) -> None:
    once, least = zip(*turns, strict=True)
    print("\n| CPU of the job | exactly once, s | at least once, s | ratio |\n| --- | ---: | ---: | ---: |")
    for name, parts in (
        ("all", [[each.whole for each in way] for way in (once, least)]),
        ("without Java", [[each.ours for each in way] for way in (once, least)]),
    ):
        one, other = map(statistics.median, parts)
        print(f"| {name} | {one:.2f} | {other:.2f} | {one / other:.2f} |")


if __name__ == "__main__":
    main()
