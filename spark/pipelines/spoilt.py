"""The job that writes flights to a topic, some of them spoilt on purpose, as data for the job `clean`.

    odradek spark spoilt-flights --topic spoilt

Of a hundred flights, in the order of their hours, five are spoilt. One is cut in its middle, one has a text for its delay,
one lacks its origin, and one has a negative distance. The last one comes twice. One of five hundred comes late, after the next 1,500 flights.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from odradek.spark.pipelines.flight_table import flight_table, require_flights
from odradek.spark.pipelines.flights import create_topic
from odradek.spark.pipelines.job import add_cluster_arguments, main_of, topics_of
from odradek.spark.pipelines.progress import ProgressLine

if TYPE_CHECKING:
    import pandas

__all__ = [
    "CUT",
    "LATE",
    "NEGATIVE",
    "NO_ORIGIN",
    "SOUND",
    "TEXT",
    "TWICE",
    "Spoilt",
    "main",
    "spoil",
    "spoilt_frame",
]

SOUND, CUT, TEXT, NO_ORIGIN = "sound", "cut", "a text for a number", "without origin"
NEGATIVE, TWICE, LATE = "a negative distance", "twice", "late"
_KINDS = {10: CUT, 30: TEXT, 50: NO_ORIGIN, 70: NEGATIVE, 90: TWICE}
_LATE_EVERY, _LATE_AT, _LATE_PLACES = 500, 7, 1500
_TWICE_PLACES = 5


@attrs.frozen
class Spoilt:
    """A record, its flight as JSON, and the kind of damage."""

    kind: str
    value: str
    flight: str


def spoil(flights: pandas.DataFrame) -> list[Spoilt]:
    """Make the records, in their order."""
    placed: list[tuple[int, Spoilt]] = []
    for place, flight in enumerate(flights.to_json(orient="records", lines=True).splitlines()):
        is_late = place % _LATE_EVERY == _LATE_AT and place + _LATE_PLACES < len(flights)
        kind = LATE if is_late else _KINDS.get(place % 100, SOUND)
        record = Spoilt(kind, _spoilt_value(kind, flight), flight)
        placed.append((place + (_LATE_PLACES if kind == LATE else 0), record))
        if kind == TWICE:
            placed.append((place + _TWICE_PLACES, record))
    return [record for _, record in sorted(placed, key=lambda each: each[0])]


def _spoilt_value(kind: str, flight: str) -> str:
    if kind == CUT:
        return flight[: len(flight) // 2]
    row = json.loads(flight)
    if kind == TEXT:
        row["dep_delay"] = f"{json.dumps(row['dep_delay'])} min"
    elif kind == NO_ORIGIN:
        row["origin"] = None
    elif kind == NEGATIVE:
        row["distance"] = -row["distance"]
    else:
        return flight
    return json.dumps(row)


def spoilt_frame(spark: SparkSession, records: list[Spoilt]) -> DataFrame:
    """Make the rows of a topic of these records, in their order."""
    table = pa.table({"value": pa.array([record.value for record in records], pa.string())})
    # Use one task, so that the records of each partition are in this order.
    return spark.createDataFrame(table).coalesce(1)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster_arguments(parser)
    parser.add_argument("--topic", default="spoilt", help="the topic (%(default)s)")
    parser.add_argument(
        "--partitions", type=int, default=1, help="number of partitions of a new topic (%(default)s)"
    )
    parser.add_argument("--limit", type=int, default=5_000, help="number of flights (%(default)s)")


def _run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    line = ProgressLine("spoilt-flights")
    topics = topics_of(spark, arguments)
    create_topic(topics, arguments.topic, arguments.partitions)
    records = spoil(flight_table().sort_values("time_hour", kind="stable").head(arguments.limit))
    with line.tasks(spark, f"writing {len(records):,} records"):
        topics.write(spoilt_frame(spark, records), arguments.topic)
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in Counter(each.kind for each in records).items())
    line.step(f"{len(records):,} records are in the topic '{arguments.topic}': {kinds}")
    return 0


main = main_of("spoilt-flights", __doc__ or "", _add_arguments, _run, require_flights)

if __name__ == "__main__":
    sys.exit(main())
