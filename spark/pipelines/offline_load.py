"""The job that loads a topic into a table of Parquet files, Delta or Iceberg. Each record is loaded exactly once, even if the job is
killed.

This is how a warehouse uses a log: periodic bulk loads, each of which continues after the last one, without
duplicates. A run loads the records that came since the last run, in loads of at most `--max-records` records. Each
load is published together with its offsets by one rename (`landing.py`). So a restart after a kill at any moment
gives exactly the same table.

    odradek spark offline-load --topic flights --table flights.parquet \\
        --json 'origin string, month int, dep_delay double' --partition-by month --plot lag.png

Any reader of partitioned Parquet can read the table: `spark.read.parquet("flights.parquet")`. With `--delta` it is a
Delta table (the extra `delta`), with `--iceberg` an Iceberg table (the extra `iceberg`). Their commits have data and
offsets. So `--replay` can replace the rows of some time, and `--compact` can merge small files, while readers are there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pyarrow.parquet as parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's usual name

from odradek.spark.pipelines.job import (
    Failed,
    Topics,
    add_cluster_arguments,
    main_of,
    spark_setting,
    topics_of,
)
from odradek.spark.pipelines.plots import LagPoint, plot_lag
from odradek.spark.pipelines.progress import ProgressLine
from odradek.spark.pipelines.tables.committed import CommittedTable
from odradek.spark.pipelines.tables.delta import DeltaLoads, require_delta
from odradek.spark.pipelines.tables.iceberg import IcebergLoads, require_iceberg
from odradek.spark.pipelines.tables.landing import Landed, Landing, Ranges, table_path

__all__ = ["Kind", "Wanted", "load", "main"]

_TIMES_KEY = "spark.sql.parquet.outputTimestampType"
"""The setting of how Parquet files keep times. Delta needs microseconds. Spark's default is Parquet's old form, INT96."""


_FILE_BYTES = 128 << 20
"""The size up to which small files are merged."""


class Kind(Enum):
    """The format of a table."""

    PARQUET = "Parquet"
    """Directories that are renamed into the table (`tables/landing.py`)."""
    DELTA = "Delta"
    ICEBERG = "Iceberg"


@attrs.frozen
class Wanted:
    """The topic to load, and the form of its table."""

    topic: str
    table: Path
    max_records: int | None = None
    """The most records in one load. None means that one load has all present records."""
    json_schema: str | None = None
    """The columns of the JSON in the values, as a SQL schema. If it is None, the table has the unchanged
    value.
    """
    partition_by: Sequence[str] = ()
    kind: Kind = Kind.PARQUET
    since_ms: int | None = None
    """The time of the first record of a new table, in ms since 1970; None for the earliest record."""
    until_ms: int | None = None
    """The time of the first record that is left to a later load; None for the end of the topic."""
    replay: bool = False
    """True if the records of these times are loaded again, in place of their rows."""
    compact: bool = False
    """True if small files are merged after the loads."""

    @property
    def times(self) -> tuple[int | None, int | None]:
        """The bounds of the records' times."""
        return self.since_ms, self.until_ms

    def committed_table(self) -> CommittedTable | None:
        """Make the table of a format with commits; None for Parquet. Raises `Failed` if its package is missing."""
        if self.kind is Kind.DELTA:
            return DeltaLoads(self.table)
        return IcebergLoads(self.table) if self.kind is Kind.ICEBERG else None


def load(topics: Topics, wanted: Wanted, landing: Landing, line: ProgressLine) -> list[LagPoint]:
    """Load the records that the table lacks. Return the lag over time. Raises `Failed`."""
    started = time.monotonic()
    _check_kind(wanted)
    table = wanted.committed_table()
    if table is not None and wanted.replay:
        _replay(topics, wanted, table, landing, line)
        return [LagPoint(0.0, 0)]
    if table is not None:
        return _load_committed(topics, wanted, table, landing, line)
    with landing.locked():
        landed = landing.landed()
        last = landed[-1] if landed else None
        landing.step("look up the topic")
        topic_id, bounds = topics.bounds(wanted.topic, *wanted.times)
        _check_same_topic(wanted, topic_id, last)
        lag = [LagPoint(0.0, _behind(bounds, last))]
        while True:
            number = 0 if last is None else last.number + 1
            ranges = landing.plan(number, topic_id, partial(_next_ranges, wanted, bounds, last))
            if not any(end > first for first, end in ranges.values()):
                break
            began = time.monotonic()
            with line.tasks(topics.spark, f"load {number}"):
                last = landing.land(
                    number,
                    wanted.topic,
                    topic_id,
                    ranges,
                    partial(_write, topics, wanted, topic_id, ranges),
                )
            now = time.monotonic()
            behind = _behind(bounds, last)
            lag.append(LagPoint(now - started, behind))
            rows = last.more["rows"]
            line.step(f"load {number}: {rows:,} records, {rows / (now - began):,.0f}/s, lag {behind:,}")
        line.step(
            f"the table has {sum(each.more['rows'] for each in landing.landed()):,} records in"
            f" {number} loads, and all that the topic had"
        )
    return lag


def _load_committed(
    topics: Topics, wanted: Wanted, table: CommittedTable, landing: Landing, line: ProgressLine
) -> list[LagPoint]:
    """Load into a table with commits. An interrupted load leaves nothing in it. So no plan is stored before a load."""
    started = time.monotonic()
    with landing.locked(), spark_setting(topics.spark, _TIMES_KEY, "TIMESTAMP_MICROS"):
        landing.step("look up the topic")
        topic_id, bounds = topics.bounds(wanted.topic, *wanted.times)
        ends = table.ends(wanted.topic, topic_id, sorted(bounds))
        last = None if ends is None else _landed(wanted, topic_id, ends, 0)
        lag = [LagPoint(0.0, _behind(bounds, last))]
        count = 0
        while True:
            ranges = _next_ranges(wanted, bounds, last)
            if not any(end > first for first, end in ranges.values()):
                break
            began = time.monotonic()
            ends = {index: end for index, (_, end) in ranges.items()}
            with line.tasks(topics.spark, f"load {count}"), _staged(wanted, table, count) as staged:
                landing.step("write the data")
                rows = _write(topics, wanted, topic_id, ranges, str(staged))["rows"]
                landing.step("land")
                table.append(staged, wanted.partition_by, topic_id, ends)
                landing.step("landed")
            last = _landed(wanted, topic_id, ends, rows)
            now = time.monotonic()
            behind = _behind(bounds, last)
            lag.append(LagPoint(now - started, behind))
            line.step(f"load {count}: {rows:,} records, {rows / (now - began):,.0f}/s, lag {behind:,}")
            count += 1
        line.step(f"{count} loads; the table has all that the topic had")
        if wanted.compact:
            landing.step("compact")
            done = table.compact(_FILE_BYTES)
            line.step(f"{done.merged} small files were merged into {done.made}")
    return lag


def _replay(
    topics: Topics, wanted: Wanted, table: CommittedTable, landing: Landing, line: ProgressLine
) -> None:
    """Load the records of the wanted times once more, in place of the rows that the table has of them. Raises
    `Failed`.
    """
    with landing.locked(), spark_setting(topics.spark, _TIMES_KEY, "TIMESTAMP_MICROS"):
        topic_id, bounds = topics.bounds(wanted.topic, *wanted.times)
        ends = table.ends(wanted.topic, topic_id, sorted(bounds))
        if ends is None:
            raise Failed(f"{wanted.table} has no load yet, so nothing can be replayed")
        # Later records are left to the next load, which begins at these ends.
        places = {
            index: (first, min(end, ends[index])) for index, (first, end) in bounds.items() if index in ends
        }
        places = {index: (first, end) for index, (first, end) in places.items() if end > first}
        if not places:
            line.step("the table has no records of these times")
            return
        with line.tasks(topics.spark, "replay"), _staged(wanted, table, 0) as staged:
            landing.step("write the data")
            rows = _write(topics, wanted, topic_id, places, str(staged))["rows"]
            landing.step("land")
            if rows:
                table.replace(staged, places)
            landing.step("landed")
        line.step(f"{rows:,} records were loaded again, in place of their rows")


@contextmanager
def _staged(wanted: Wanted, table: CommittedTable, load: int) -> Iterator[Path]:
    """Provide the directory of a load's files. A table that has copied them no longer needs them."""
    staged = table.staging(load)
    yield staged
    if wanted.kind is Kind.DELTA:
        shutil.rmtree(staged)


def _landed(wanted: Wanted, topic_id: str, ends: Mapping[int, int], rows: int) -> Landed:
    ranges = {index: (end, end) for index, end in ends.items()}
    return Landed(0, wanted.table, wanted.topic, topic_id, ranges, {"rows": rows})


def _check_kind(wanted: Wanted) -> None:
    """Raise `Failed` if the directory has a table of another kind, or of a kind that cannot do this."""
    marks = {Kind.DELTA: "_delta_log", Kind.ICEBERG: "_catalog.db", Kind.PARQUET: "load=*"}
    for kind, mark in marks.items():
        if kind is not wanted.kind and any(wanted.table.glob(mark)):
            option = "load into another table" if kind is Kind.PARQUET else f"add --{kind.value.lower()}"
            raise Failed(f"{wanted.table} is a table of {kind.value}: {option}")
    if wanted.kind is Kind.PARQUET and (wanted.replay or wanted.compact):
        raise Failed(
            "--replay and --compact need a format with commits, since readers would see half of the change: add "
            "--delta or --iceberg"
        )
    if wanted.replay and wanted.since_ms is None and wanted.until_ms is None:
        raise Failed("--replay needs --since or --until, which say what is loaded again")


def _behind(bounds: Ranges, last: Landed | None) -> int:
    """Count the offsets of the topic that are not in the table yet."""
    ranges = {} if last is None else last.ranges
    return sum(max(0, end - ranges.get(index, (0, begin))[1]) for index, (begin, end) in bounds.items())


def _check_same_topic(wanted: Wanted, topic_id: str, last: Landed | None) -> None:
    if last is None:
        return
    if last.topic != wanted.topic:
        raise Failed(
            f"{wanted.table} holds the topic '{last.topic}', not '{wanted.topic}': load into another table"
        )
    if last.topic_id != topic_id:
        raise Failed(
            f"the topic '{wanted.topic}' was deleted and created again since the last load, so its "
            "offsets mean other records: load it into another table"
        )


def _next_ranges(wanted: Wanted, bounds: Ranges, last: Landed | None) -> Ranges:
    """Compute the ranges of the next load, from the end of the last one. If there are more records than
    `max_records`, each partition gets an equal share.
    """
    ranges: Ranges = {}
    for index, (begin, end) in bounds.items():
        first = begin if last is None or index not in last.ranges else last.ranges[index][1]
        if first < begin and wanted.since_ms is not None:
            raise Failed(
                f"the records of {wanted.topic}-{index} from offset {first} to {begin} would be left out, since they "
                "are older than --since: leave it out, or load into another table"
            )
        if first < begin:
            raise Failed(
                f"records are lost: {wanted.topic}-{index} now begins at offset {begin}, and the table "
                f"ends at offset {first}"
            )
        ranges[index] = (first, max(first, end))
    if wanted.max_records is None:
        return ranges
    left = wanted.max_records
    shares = dict.fromkeys(ranges, 0)
    for number, index in enumerate(sorted(ranges, key=lambda index: ranges[index][1] - ranges[index][0])):
        first, end = ranges[index]
        shares[index] = min(end - first, max(1, left // (len(ranges) - number)))
        left -= shares[index]
    return {index: (first, first + shares[index]) for index, (first, _) in ranges.items()}


def _write(topics: Topics, wanted: Wanted, topic_id: str, ranges: Ranges, directory: str) -> dict[str, Any]:
    """Write the records of these ranges as Parquet. Return the number of rows under "rows", counted in the files
    themselves.

    (An accumulator of Spark would count a repeated task twice.)
    """
    records = topics.read(
        wanted.topic,
        startingOffsets=json.dumps({wanted.topic: {str(each): first for each, (first, _) in ranges.items()}}),
        endingOffsets=json.dumps({wanted.topic: {str(each): end for each, (_, end) in ranges.items()}}),
    )
    rows = _shaped(records, wanted)
    if wanted.kind is Kind.ICEBERG:
        # Iceberg wants the columns inside of the files, and one value of each in a file.
        copies = {f"by_{name}": F.col(name) for name in wanted.partition_by}
        rows.withColumns(copies).write.partitionBy(*copies).parquet(directory)
    elif wanted.kind is Kind.DELTA:
        # The writer of the Delta table creates the partition directories itself.
        rows.write.parquet(directory)
    else:
        rows.write.partitionBy(*wanted.partition_by).parquet(directory)
    topics.check_id(wanted.topic, topic_id)
    files = Path(directory).rglob("*.parquet")
    return {"rows": sum(parquet.read_metadata(file).num_rows for file in files)}


def _shaped(records: DataFrame, wanted: Wanted) -> DataFrame:
    """Select the columns of the table: each record's position and contents."""
    places = [F.col(name) for name in ("topic", "partition", "offset", "timestamp")]
    if wanted.json_schema is None:
        return records.select(*places, "key", "value", F.to_date("timestamp").alias("day"))
    parsed = F.from_json(F.col("value").cast("string"), wanted.json_schema).alias("parsed")
    return records.select(*places, F.col("key").cast("string").alias("key"), parsed).select(
        "topic", "partition", "offset", "timestamp", "key", "parsed.*"
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster_arguments(parser)
    parser.add_argument("--topic", required=True)
    parser.add_argument(
        "--table", required=True, help="directory of the table; it is created if it does not exist"
    )
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--delta", action="store_true", help="a Delta table (needs the package deltalake)")
    formats.add_argument(
        "--iceberg", action="store_true", help="an Iceberg table (needs the package pyiceberg)"
    )
    parser.add_argument("--max-records", type=int, help="the most records in one load (default: all records)")
    parser.add_argument(
        "--json", metavar="COLUMNS", help="columns of the JSON values, as 'origin string, month int'"
    )
    parser.add_argument(
        "--partition-by",
        metavar="COLUMN,...",
        help="columns by which the table is partitioned into directories (default: the day of the timestamp, or no column with --json)",
    )
    parser.add_argument(
        "--since",
        type=_time,
        metavar="TIME",
        help="a new table begins at records of this time, as 2013-07-01 (UTC)",
    )
    parser.add_argument(
        "--until", type=_time, metavar="TIME", help="records of this time and later are left to a later load"
    )
    parser.add_argument(
        "--replay",
        action="store_true",
        help="load the records from --since to --until again, in place of their rows, with today's columns",
    )
    parser.add_argument("--compact", action="store_true", help="merge small files after the loads")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the lag over time")


def _time(text: str) -> int:
    """Parse a time, of UTC if it names no zone, into ms since 1970. Raises `argparse.ArgumentTypeError`."""
    try:
        time_given = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time like 2013-07-01 or 2013-07-01T06:00") from None
    if time_given.tzinfo is None:
        time_given = time_given.replace(tzinfo=UTC)
    return int(time_given.timestamp() * 1000)


def _run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    if arguments.max_records is not None and arguments.max_records < 1:
        raise Failed("--max-records must be at least 1")
    table = table_path(arguments.table)
    default = [] if arguments.json else ["day"]
    wanted = Wanted(
        arguments.topic,
        table,
        arguments.max_records,
        arguments.json,
        arguments.partition_by.split(",") if arguments.partition_by else default,
        Kind.DELTA if arguments.delta else Kind.ICEBERG if arguments.iceberg else Kind.PARQUET,
        arguments.since,
        arguments.until,
        arguments.replay,
        arguments.compact,
    )
    line = ProgressLine("offline-load")
    lag = load(topics_of(spark, arguments), wanted, Landing(wanted.table, "load"), line)
    if arguments.plot is not None:
        plot_lag(arguments.plot, f"Offline load of {wanted.topic}", lag)
        line.step(f"drawn: {arguments.plot}")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if arguments.delta:
        require_delta("--delta")
    if arguments.iceberg:
        require_iceberg()


main = main_of("offline-load", __doc__ or "", _add_arguments, _run, _check)

if __name__ == "__main__":
    sys.exit(main())
