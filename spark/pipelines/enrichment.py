"""The job that joins a stream of flights with tables, and with a stream of the weather, and writes the result to a topic.

Aircraft, airlines and airports are tables that fit into memory, so each task has a copy of them (stream-static joins). The
weather at the origin in the hour of the departure is a stream of its own (a stream-stream join). Each side waits in the
state for the other one, until the watermark says that none will come. A flight that has met no weather is then written
alone. The watermark is that of the slower stream, so that neither side loses rows while the other one is behind. Both
streams are read at one pace, so that both have news in each batch.

    odradek spark enrichment --topic flights --weather weather --to enriched --checkpoint enriched.checkpoint

The key of a record is that of the flight, its aircraft. The value is JSON: the flight with the names of airline and
airports, the aircraft's manufacturer, model, year and seats, and the weather. The query writes exactly once, and continues
from its checkpoint.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's usual name
from pyspark.sql.streaming.query import StreamingQuery

from odradek.spark.pipelines.flight_table import airline_table, airport_table, plane_table, require_flights
from odradek.spark.pipelines.flights import JSON_COLUMNS
from odradek.spark.pipelines.job import Topics, add_cluster_arguments, main_of, topics_of
from odradek.spark.pipelines.progress import ProgressLine
from odradek.spark.pipelines.streams import add_stream_arguments, run_query, start_query, topic_writer
from odradek.spark.pipelines.weather import WEATHER_COLUMNS

if TYPE_CHECKING:
    import pandas

__all__ = ["ENRICHED_COLUMNS", "Enrichment", "main", "with_tables", "with_weather"]

ENRICHED_COLUMNS = (
    f"{JSON_COLUMNS}, airline string, origin_name string, dest_name string, manufacturer string, model string,"
    " built int, seats int, temp double, wind_speed double, precip double, visib double"
)
"""The JSON fields of an enriched flight, as a Spark schema."""


def with_tables(flights: DataFrame) -> DataFrame:
    """Join flights with the tables of aircraft, airlines and airports. A flight that a table lacks gets nulls."""
    spark = flights.sparkSession
    planes = plane_table().rename(columns={"year": "built"})
    tables = (
        (planes[["tailnum", "manufacturer", "model", "built", "seats"]], "tailnum"),
        (airline_table().rename(columns={"name": "airline"}), "carrier"),
        (_airports("origin"), "origin"),
        (_airports("dest"), "dest"),
    )
    for table, key in tables:
        rows = spark.createDataFrame(pa.Table.from_pandas(table, preserve_index=False))
        flights = flights.join(F.broadcast(rows), key, "left")
    return flights


def _airports(side: str) -> pandas.DataFrame:
    return airport_table()[["faa", "name"]].rename(columns={"faa": side, "name": f"{side}_name"})


def with_weather(flights: DataFrame, weather: DataFrame, watermark: str) -> DataFrame:
    """Join flights with the weather at their origin in their hour. Either row may come `watermark` later than the newest
    row of its stream.
    """
    hours = weather.withWatermark("time_hour", watermark)
    return flights.withWatermark("time_hour", watermark).join(hours, ["origin", "time_hour"], "left")


@attrs.frozen
class Enrichment:
    """The topics of the job."""

    topics: Topics
    flights: str
    weather: str
    target: str
    watermark: str = "1 day"

    def start(
        self, checkpoint: str, records_per_batch: int, every_seconds: float | None = None
    ) -> StreamingQuery:
        """Start the query. A batch reads at most `records_per_batch` flights, and the same share of the weather. Without
        `every_seconds`, the query ends when it has read all present records.

        Raises `Failed` if a topic is missing, or no broker answers.
        """
        flights = self._read(self.flights, JSON_COLUMNS, records_per_batch, "key")
        weather = self._read(self.weather, WEATHER_COLUMNS, self._weather_per_batch(records_per_batch))
        joined = with_weather(with_tables(flights), weather, self.watermark)
        fields = [each.split()[0] for each in ENRICHED_COLUMNS.split(", ")]
        rows = joined.select("key", F.to_json(F.struct(*fields)).alias("value"))
        return start_query(
            topic_writer(rows.writeStream.outputMode("append"), self.topics, self.target),
            checkpoint,
            every_seconds,
        )

    def _weather_per_batch(self, flights_per_batch: int) -> int:
        """Return how much weather a batch reads, so that both topics are read to their ends in as many batches.

        Spark keeps each stream's watermark in memory only. After a restart, the watermark of the query stands still until
        both streams have news. So a stream that was read to its end long before the other one would hold up all rows
        that wait for the watermark.
        """
        flights, weather = self._present(self.flights), self._present(self.weather)
        if flights == 0 or weather == 0:
            return flights_per_batch
        return math.ceil(flights_per_batch * weather / flights)

    def _present(self, topic: str) -> int:
        """Return the number of offsets between the ends of a topic's logs."""
        _, bounds = self.topics.bounds(topic)
        return sum(end - begin for begin, end in bounds.values())

    def _read(self, topic: str, columns: str, records_per_batch: int, *more: str) -> DataFrame:
        records = self.topics.read_stream(
            topic, startingOffsets="earliest", maxOffsetsPerTrigger=str(records_per_batch)
        )
        parsed = F.from_json(F.col("value").cast("string"), columns).alias("row")
        return records.select(*more, parsed).select(*more, "row.*")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster_arguments(parser)
    parser.add_argument(
        "--topic", default="flights", help="the topic of flights, as `odradek spark flights` writes it"
    )
    parser.add_argument(
        "--weather", default="weather", help="the topic of weather, as `odradek spark weather` writes it"
    )
    parser.add_argument("--to", default="enriched", help="the topic of enriched flights (%(default)s)")
    parser.add_argument(
        "--watermark",
        default="1 day",
        help="how late a flight or an hour of weather may arrive (%(default)s)",
    )
    add_stream_arguments(parser)


def _run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    line = ProgressLine("enrichment")
    topics = topics_of(spark, arguments)
    job = Enrichment(topics, arguments.topic, arguments.weather, arguments.to, arguments.watermark)
    read = run_query(line, job.start(arguments.checkpoint, arguments.records_per_batch, arguments.every))
    line.step(f"{read:,} records read; enriched flights are in the topic '{arguments.to}'")
    return 0


main = main_of("enrichment", __doc__ or "", _add_arguments, _run, require_flights)

if __name__ == "__main__":
    sys.exit(main())
