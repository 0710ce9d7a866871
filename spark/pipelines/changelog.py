"""The job that keeps a Parquet table with the latest value of every key of a topic.

The topic is a log of changes (compacted or not): for each key its last record counts, and a null value deletes the
key. A refresh reads only the records that came after the last refresh. From these records and the current version of
the table, the refresh makes the next version. One rename publishes this version together with its offsets
(`landing.py`). The newest directory is the table:

    odradek spark changelog --topic flights --table aircraft.parquet
    spark.read.parquet("aircraft.parquet/version=00000000")

The last record of a key is the one with the greatest offset in its partition. A key stays in one partition as long as
the number of partitions does not change. If it changes, a key may have records in two partitions; then the record
with the later timestamp counts. Refresh the table of a compacted topic more often than the topic's
`delete.retention.ms`, because after that time deletions disappear from the log.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's usual name

from odradek.spark.pipelines.job import Failed, Topics, add_cluster_arguments, main_of, topics_of
from odradek.spark.pipelines.progress import ProgressLine
from odradek.spark.pipelines.tables.landing import Landed, Landing, Ranges, table_path

__all__ = ["latest", "main", "refresh"]

_COLUMNS = ("key", "value", "partition", "offset", "timestamp")


def refresh(topics: Topics, topic: str, landing: Landing, line: ProgressLine, keep: int = 2) -> Landed | None:
    """Write the next version of the table if there are new records. Return the newest version; None if the topic is
    empty. Raises `Failed`.

    `keep - 1` older versions stay on disk for readers that still use them.
    """
    with landing.locked():
        landed = landing.landed()
        last = landed[-1] if landed else None
        landing.step("look up the topic")
        topic_id, bounds = topics.bounds(topic)
        if last is not None and (last.topic, last.topic_id) != (topic, topic_id):
            raise Failed(
                f"{landing.table} holds an earlier topic '{last.topic}', which was deleted or renamed "
                "since: load into another table"
            )
        number = 0 if last is None else last.number + 1
        ranges = landing.plan(number, topic_id, partial(_behind, topic, bounds, last))
        fresh = sum(end - first for first, end in ranges.values())
        if not fresh:
            line.step("no records have come since the last refresh")
            return last
        with line.tasks(topics.spark, f"version {number}"):
            made = landing.land(number, topic, topic_id, ranges, partial(_write, topics, topic, ranges, last))
        line.step(f"version {number}: {fresh:,} offsets read, {made.more['keys']:,} keys")
        for old in landed[: max(0, len(landed) + 1 - keep)]:
            landing.drop(old)
    return made


def latest(records: DataFrame) -> DataFrame:
    """Select the last record of every key, including deletions, from records with the columns of the data source."""
    row = F.struct(*_COLUMNS)
    by_partition = (
        records.select(*_COLUMNS)
        .where("key is not null")
        .groupBy("key", "partition")
        .agg(F.max_by(row, "offset").alias("row"))
    )
    by_key = by_partition.groupBy("key").agg(
        F.max_by("row", F.struct("row.timestamp", "row.partition")).alias("row")
    )
    return by_key.select("row.*")


def _behind(topic: str, bounds: Ranges, last: Landed | None) -> Ranges:
    ranges: Ranges = {}
    for index, (begin, end) in bounds.items():
        first = begin if last is None or index not in last.ranges else last.ranges[index][1]
        if first < begin:
            raise Failed(
                f"changes of {topic}-{index} are lost, because its log now begins at offset {begin}, and the table "
                f"ends at offset {first}: load into another table"
            )
        ranges[index] = (first, max(first, end))
    return ranges


def _write(topics: Topics, topic: str, ranges: Ranges, last: Landed | None, directory: str) -> dict[str, Any]:
    changes = topics.read(
        topic,
        startingOffsets=json.dumps({topic: {str(each): first for each, (first, _) in ranges.items()}}),
        endingOffsets=json.dumps({topic: {str(each): end for each, (_, end) in ranges.items()}}),
    ).select(*_COLUMNS)
    known = changes if last is None else changes.unionByName(topics.spark.read.parquet(str(last.path)))
    observation = Observation()
    table = latest(known).where("value is not null").observe(observation, F.count(F.lit(1)).alias("keys"))
    table.write.parquet(directory)
    return {"keys": int(observation.get["keys"])}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster_arguments(parser)
    parser.add_argument("--topic", required=True)
    parser.add_argument(
        "--table", required=True, help="directory of the table; it is created if it does not exist"
    )
    parser.add_argument(
        "--keep", type=int, default=2, help="number of versions of the table that are kept (%(default)s)"
    )


def _run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    if arguments.keep < 1:
        raise Failed("--keep must be at least 1")
    line = ProgressLine("changelog")
    made = refresh(
        topics_of(spark, arguments),
        arguments.topic,
        Landing(table_path(arguments.table), "version"),
        line,
        arguments.keep,
    )
    if made is not None:
        line.step(f"the table is {made.path}")
    return 0


main = main_of("changelog", __doc__ or "", _add_arguments, _run)

if __name__ == "__main__":
    sys.exit(main())
