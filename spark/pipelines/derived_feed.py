"""The job that computes the delays of flights by airport and hour as a stream, and writes them to another topic.

A time window is written once: when the watermark says that no more flights of this window will come. The window gives
one record for each airport and hour. Its key is `AIRPORT HOUR`, and its value is JSON with the number of flights, the
number of cancelled flights, and the mean delay. After a crash the query continues from its checkpoint, and writes no
record again. With `--delivery at-least-once` the query may write the records of its last batch again. Such repeated
records are harmless for readers that use only the last record of a key (a compacted topic, `odradek spark
changelog`). Flights of aborted transactions are not read.

    odradek spark derived-feed --topic flights --to delays --checkpoint delays.checkpoint --plot delays.png

By default the job reads all present records and ends. With `--every 10` it runs for ever, with a batch every 10 seconds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import attrs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's usual name
from pyspark.sql.streaming.query import StreamingQuery

from odradek.spark.pipelines.flights import JSON_COLUMNS
from odradek.spark.pipelines.job import Failed, Topics, add_cluster_arguments, main_of, topics_of
from odradek.spark.pipelines.plots import plot_delays
from odradek.spark.pipelines.progress import ProgressLine
from odradek.spark.pipelines.streams import add_stream_arguments, run_query, start_query, topic_writer

AT_LEAST_ONCE, EXACTLY_ONCE = "at-least-once", "exactly-once"
__all__ = ["DELAY_COLUMNS", "delays", "delays_by_hour", "delivery_options", "main", "start"]

DELAY_COLUMNS = (
    "origin string, start timestamp, end timestamp, flights long, cancelled long, mean_dep_delay double"
)
"""The JSON fields of a record in the feed, as a Spark schema."""


def delays(records: DataFrame, window: str, watermark: str) -> DataFrame:
    """Compute the keys and values of the feed from the flights' records."""
    flights = records.select(F.from_json(F.col("value").cast("string"), JSON_COLUMNS).alias("flight")).select(
        "flight.*"
    )
    sums = (
        flights.withWatermark("time_hour", watermark)
        .groupBy(F.window("time_hour", window), "origin")
        .agg(
            F.count(F.lit(1)).alias("flights"),
            F.count_if(F.col("dep_delay").isNull()).alias("cancelled"),
            F.avg("dep_delay").alias("mean_dep_delay"),
        )
        .select("origin", "window.start", "window.end", "flights", "cancelled", "mean_dep_delay")
    )
    start = F.date_format("start", "yyyy-MM-dd'T'HH:mm")
    return sums.select(
        F.concat_ws(" ", "origin", start).alias("key"),
        F.to_json(F.struct(*sums.columns)).alias("value"),
    )


def start(
    topics: Topics,
    source: str,
    target: str,
    checkpoint: str,
    *,
    window: str = "1 hour",
    watermark: str = "1 day",
    records_per_batch: int | None = None,
    every_seconds: float | None = None,
) -> StreamingQuery:
    """Start the query. Without `every_seconds`, it ends when it has read all present records."""
    bounded = {} if records_per_batch is None else {"maxOffsetsPerTrigger": str(records_per_batch)}
    records = topics.read_stream(source, startingOffsets="earliest", **bounded)
    writer = topic_writer(delays(records, window, watermark).writeStream.outputMode("append"), topics, target)
    return start_query(writer, checkpoint, every_seconds)


def delivery_options(topics: Topics, delivery: str | None) -> dict[str, str]:
    """Return the sink option for the delivery; None means the best delivery that the format supports. Raises `Failed`
    if the format's sink would ignore the option.
    """
    if topics.format == "odradek":
        return {"delivery": delivery or EXACTLY_ONCE}
    if delivery == EXACTLY_ONCE:
        raise Failed(
            f"--delivery {delivery} is not possible: the format {topics.format} writes at least once"
        )
    return {}


def delays_by_hour(topics: Topics, target: str) -> dict[str, dict[int, float]]:
    """Compute the mean delay by airport and hour of the day (in New York) from the feed. Windows are weighted by
    their number of flights.
    """
    rows = (
        topics.read(target)
        .select(
            F.col("key").cast("string"), "offset", "partition", F.col("value").cast("string").alias("value")
        )
        # A record that was written twice counts once.
        .groupBy("key")
        .agg(F.max_by("value", F.struct("partition", "offset")).alias("value"))
        .select(F.from_json("value", DELAY_COLUMNS).alias("delay"))
        .select("delay.*")
        .where("mean_dep_delay is not null")
        .withColumn("hour", F.hour(F.from_utc_timestamp("start", "America/New_York")))
        .withColumn("flown", F.col("flights") - F.col("cancelled"))
        .groupBy("origin", "hour")
        .agg((F.sum(F.col("mean_dep_delay") * F.col("flown")) / F.sum("flown")).alias("delay"))
        .collect()
    )
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        found.setdefault(row["origin"], {})[row["hour"]] = row["delay"]
    return found


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster_arguments(parser)
    parser.add_argument(
        "--topic", default="flights", help="the topic of flights, as `odradek spark flights` writes it"
    )
    parser.add_argument("--to", default="delays", help="the topic of the feed (%(default)s)")
    parser.add_argument("--window", default="1 hour", help="(%(default)s)")
    parser.add_argument(
        "--watermark", default="1 day", help="how late a flight may arrive and still count (%(default)s)"
    )
    parser.add_argument(
        "--delivery",
        choices=(AT_LEAST_ONCE, EXACTLY_ONCE),
        help="exactly-once, the default with the format odradek: no record is written again after a crash",
    )
    add_stream_arguments(parser)
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="at the end, draw the delays by the hour of the day"
    )


def _run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    line = ProgressLine("derived-feed")
    topics = topics_of(spark, arguments)
    topics = attrs.evolve(topics, writing=delivery_options(topics, arguments.delivery))
    query = start(
        topics,
        arguments.topic,
        arguments.to,
        arguments.checkpoint,
        window=arguments.window,
        watermark=arguments.watermark,
        records_per_batch=arguments.records_per_batch,
        every_seconds=arguments.every,
    )
    read = run_query(line, query)
    line.step(f"{read:,} records read; the feed is the topic '{arguments.to}'")
    if arguments.plot is not None:
        plot_delays(arguments.plot, "Delays of departure from New York", delays_by_hour(topics, arguments.to))
        line.step(f"drawn: {arguments.plot}")
    return 0


main = main_of("derived-feed", __doc__ or "", _add_arguments, _run)

if __name__ == "__main__":
    sys.exit(main())
