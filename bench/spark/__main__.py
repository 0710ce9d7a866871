"""Measures all figures for Spark that have a goal: writes, reads, latency, small partitions, memory.

    python -m bench.spark [--quick] [--server odradek|kafka]

Our format and Spark's own connector take turns in one session (local[2]); the figures are medians. `--quick` only
checks that the benchmark runs; its figures are meaningless. For one kind alone there are `bench.spark.sink`,
`bench.spark.source` and `bench.spark.partitions`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import attrs
from pyspark.sql import SparkSession

from bench.spark import partitions, sink, source
from testkit.kafka_server import KafkaUnavailable, kafka_server
from testkit.odradek_server import odradek_server
from testkit.processes import ServerProcess
from testkit.spark_jars import spark_jars

_OURS, _CONNECTOR = "odradek", "kafka"


@attrs.frozen
class Figure:
    """A figure and its goal: at least `least`, or at most `most`."""

    name: str
    value: float
    least: float | None = None
    most: float | None = None

    def __str__(self) -> str:
        if self.least is not None:
            goal, holds = f"at least {self.least:g}", self.value >= self.least
        else:
            assert self.most is not None
            goal, holds = f"at most {self.most:g}", self.value <= self.most
        return f"| {self.name} | {self.value:.2f} | {goal}: {'holds' if holds else '**missed**'} |"


def writes(found: Mapping[str, Sequence[float]]) -> list[Figure]:
    """Return the figures and goals of `bench.spark.sink`."""
    speeds = {name: statistics.median(each) for name, each in found.items()}
    once, at_least_once = speeds[sink.EXACTLY_ONCE], speeds[sink.AT_LEAST_ONCE]
    figures = [Figure("writing exactly once over at least once", once / at_least_once, least=0.8)]
    if sink.CONNECTOR in speeds:
        ratio = once / speeds[sink.CONNECTOR]
        figures.append(Figure("writing exactly once over the connector at least once", ratio, least=1.0))
    return figures


def reads(found: Mapping[tuple[int, int, str], Mapping[str, float]], rows: int) -> list[Figure]:
    """Return the figures of `bench.spark.source` for which there is a goal."""
    goals = (("batch -> noop", 2.0), ("batch -> Parquet", 1.6), ("AvailableNow -> noop", 1.2))
    figures = []
    for name, least in goals:
        speeds = found[source.SIZES[0], rows, name]
        if _CONNECTOR in speeds:
            ratio = speeds[_OURS] / speeds[_CONNECTOR]
            figures.append(Figure(f"{name}, {rows:,} rows of 100 B, over the connector", ratio, least=least))
    return figures


def measure(spark: SparkSession, server: ServerProcess, formats: list[str], quick: bool) -> list[Figure]:
    """Measure all figures, in the order of the table."""
    small = ["--rows", "40000", "--long-rows", "0", "--rounds", "1"]
    arguments = source.parser().parse_args(
        small if quick else ["--long-rows", "0", "--rounds", "5", "--warm", "3"]
    )
    figures = reads(source.throughput(spark, server.bootstrap, formats, arguments), arguments.rows)
    medians = source.latency(spark, server.bootstrap, formats, 2.0 if quick else 30.0)
    if _OURS in medians and _CONNECTOR in medians:
        ratio = medians[_OURS] / medians[_CONNECTOR]
        figures.append(Figure("micro-batch, p50 over the connector's", ratio, most=1.0))
    rows, rounds = (10_000, 1) if quick else (1_000_000, 5)
    found = sink.measure(spark, rows, rounds, server, with_connector=_CONNECTOR in formats)
    figures += writes(found)
    seconds = partitions.measure(spark, server, 50_000, 1 if quick else 7)
    ratio = seconds[partitions.MANY] / seconds[1]
    figures.append(Figure(f"{partitions.MANY:,} small partitions, time over that of one", ratio, most=2.0))
    figures.append(Figure("the largest Python worker, MiB", max(source.memory(spark)), most=150.0))
    return figures


def main() -> None:
    """Measure all figures and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only check that the benchmark runs")
    parser.add_argument("--server", choices=("odradek", "kafka"), default="odradek")
    arguments = parser.parse_args()
    formats, jars = [_OURS], None
    try:
        jars = spark_jars()
        formats.append(_CONNECTOR)
    except KafkaUnavailable as reason:
        print(f"Spark's JVM connector is not measured: {reason}", file=sys.stderr)
    starting: AbstractContextManager[ServerProcess] = (
        kafka_server() if arguments.server == "kafka" else odradek_server()
    )
    with starting as server:
        spark = source.session(jars)
        figures = measure(spark, server, formats, arguments.quick)
        spark.stop()
    print("\n| Spark | figure | goal |\n| --- | ---: | --- |")
    print("\n".join(map(str, figures)))


if __name__ == "__main__":
    main()
