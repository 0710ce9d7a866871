"""The job that copies the good rows of a topic of JSON to another topic, each once, and the bad ones to a third.

A value is parsed permissively, so that a bad row ends no query. A row is bad if it is no JSON, or has a value
of another type than its column. It is also bad if it lacks its id or its time, or breaks a rule. Such a row becomes a dead letter: the unchanged record, with
its topic, partition, offset and the reason in headers. Both topics are written by one transaction of each task.

A row that comes again within the watermark is left out. Spark drops rows that come later than the watermark, and only
counts them. So a run ends with an audit. Rows that are neither in the target nor among the dead letters become
dead letters, with the reason `late`.

    odradek spark clean --topic spoilt --to clean --dead dead --checkpoint clean.checkpoint

`--replay` reads the dead letters, each once, and judges them again. Good rows go to the target, unless it has them
already. The others stay dead letters. `--mend` is an SQL expression that gives the mended value:

    odradek spark clean --topic spoilt --to clean --dead dead --checkpoint replay.checkpoint --replay \\
        --mend "replace(value, '-,', 'null,')"
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence

import attrs
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's usual name
from pyspark.sql.streaming.query import StreamingQuery

from odradek.spark.pipelines.flights import JSON_COLUMNS, create_topic
from odradek.spark.pipelines.job import Failed, Topics, add_cluster_arguments, main_of, topics_of
from odradek.spark.pipelines.progress import ProgressLine
from odradek.spark.pipelines.streams import add_stream_arguments, run_query, start_query, topic_writer

__all__ = ["LATE", "PLACE", "REASON", "Cleaning", "Rules", "main"]

PLACE = ("dead.topic", "dead.partition", "dead.offset")
"""Headers of a dead letter with the place of its record."""
REASON = "dead.reason"
LATE = "late: came after the watermark"


@attrs.frozen
class Rules:
    """The rules for a good row."""

    columns: str
    """The JSON fields, as a Spark schema."""
    ids: Sequence[str]
    """The columns that together name a row."""
    time: str
    """The column with the row's time."""
    expected: Sequence[str] = ()
    """SQL conditions of the columns. A row is bad if one of them is false."""

    def judge(self, records: DataFrame, value: Column) -> DataFrame:
        """Parse the JSON `value` of records. The result has the columns `record` (all columns of the records), `id`,
        `time`, and `reason`, which is null for a good row.
        """
        parsed = F.from_json(
            value, f"{self.columns}, _corrupt string", {"columnNameOfCorruptRecord": "_corrupt"}
        )
        rows = records.select(
            F.struct(*records.columns).alias("_record"), value.alias("_value"), parsed.alias("_row")
        ).select("_record", "_value", "_row", "_row.*")
        return rows.select(
            F.col("_record").alias("record"),
            F.to_json(F.struct(*(f"_row.`{name}`" for name in self.ids))).alias("id"),
            F.col(f"_row.`{self.time}`").cast("timestamp").alias("time"),
            self._reason().alias("reason"),
        )

    def _reason(self) -> Column:
        reasons = [
            (F.col("_value").isNull(), "has no value"),
            (F.col("_corrupt").isNotNull(), "is no JSON, or has a value of another type"),
        ]
        reasons += [(F.col(f"_row.`{name}`").isNull(), f"lacks {name}") for name in (*self.ids, self.time)]
        reasons += [
            (~F.coalesce(F.expr(condition), F.lit(True)), f"breaks the rule: {condition}")
            for condition in self.expected
        ]
        found = F.lit(None).cast("string")
        for is_so, reason in reversed(reasons):
            found = F.when(is_so, F.lit(reason)).otherwise(found)
        return found


@attrs.frozen
class Cleaning:
    """The topics of the job, and its rules."""

    topics: Topics
    source: str
    target: str
    dead: str
    rules: Rules
    watermark: str = "1 day"

    def start(
        self, checkpoint: str, records_per_batch: int, every_seconds: float | None = None
    ) -> StreamingQuery:
        """Start the query. Without `every_seconds`, it ends when it has read all present records."""
        judged = self.rules.judge(self._stream(self.source, records_per_batch), _text("value"))
        good = (
            judged.where("reason is null")
            .withWatermark("time", self.watermark)
            .dropDuplicatesWithinWatermark(["id"])
        )
        rows = _copies(good, self.target).unionByName(_letters(judged.where("reason is not null"), self.dead))
        return self._write(rows, checkpoint, every_seconds)

    def replay(
        self,
        checkpoint: str,
        records_per_batch: int,
        mend: str | None = None,
        every_seconds: float | None = None,
    ) -> StreamingQuery:
        """Start the query that judges the dead letters again. `mend` is an SQL expression that gives the mended value
        from `value`, the text of the old one. Raises `Failed` if it is invalid.
        """
        letters = self._stream(self.dead, records_per_batch)
        mended = letters.withColumn("value", _text("value"))
        try:
            mended = mended.withColumn("value", F.expr(mend or "value").cast("string"))
            # A classic frame is analysed here, and one of Spark Connect when its columns are asked for.
            assert "value" in mended.columns
        except PySparkException as error:
            raise Failed(f"--mend is no SQL expression of value: {error}") from None
        good = self.rules.judge(mended, F.col("value")).where("reason is null")
        # Dead letters are few, so the state may have all their ids.
        fresh = good.dropDuplicates(["id"]).join(self._ids(), "id", "left_anti")
        return self._write(_copies(fresh, self.target), checkpoint, every_seconds)

    def late(self, bounds: Mapping[int, tuple[int, int]]) -> DataFrame:
        """Select the good rows of the source that are neither in the target nor among the dead letters.

        `bounds` are first and end offsets. The query must have read all records below the ends.
        """
        records = self.topics.read(
            self.source,
            includeHeaders="true",
            startingOffsets=json.dumps(
                {self.source: {str(each): first for each, (first, _) in bounds.items()}}
            ),
            endingOffsets=json.dumps({self.source: {str(each): end for each, (_, end) in bounds.items()}}),
        )
        good = self.rules.judge(records, _text("value")).where("reason is null")
        letters = self.topics.read(self.dead, includeHeaders="true")
        places = letters.select(
            *(_header(name).alias(column) for name, column in zip(PLACE, _PLACE_COLUMNS, strict=True))
        )
        is_letter = [
            F.col(f"record.{name[5:]}").cast("string") == F.col(column)
            for name, column in zip(PLACE, _PLACE_COLUMNS, strict=True)
        ]
        missing = good.join(self._ids(), "id", "left_anti").join(places, is_letter, "left_anti")
        return missing.withColumn("reason", F.lit(LATE))

    def audit(self, bounds: Mapping[int, tuple[int, int]]) -> int:
        """Write the late rows to the dead letters, and return their number."""
        rows = _letters(self.late(bounds), self.dead).persist()
        try:
            count = rows.count()
            if count:
                self.topics.write(rows, self.dead)
        finally:
            rows.unpersist()
        return count

    def reasons(self) -> dict[str, int]:
        """Count the dead letters by reason."""
        letters = self.topics.read(self.dead, includeHeaders="true")
        counted = letters.groupBy(_header(REASON).alias("reason")).count().collect()
        return {row["reason"]: row["count"] for row in counted}

    def _stream(self, topic: str, records_per_batch: int) -> DataFrame:
        return self.topics.read_stream(
            topic,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=str(records_per_batch),
            includeHeaders="true",
        )

    def _ids(self) -> DataFrame:
        """Select the ids of the rows in the target."""
        return self.rules.judge(self.topics.read(self.target), _text("value")).select("id").distinct()

    def _write(self, rows: DataFrame, checkpoint: str, every_seconds: float | None) -> StreamingQuery:
        writer = topic_writer(rows.writeStream.outputMode("append"), self.topics)
        return start_query(writer, checkpoint, every_seconds)


_PLACE_COLUMNS = ("dead_topic", "dead_partition", "dead_offset")


def _text(name: str) -> Column:
    return F.col(name).cast("string")


def _header(name: str) -> Column:
    """Make the column with the text of the last header of this name."""
    return F.element_at(F.filter("headers", lambda each: each["key"] == name), -1)["value"].cast("string")


def _copies(judged: DataFrame, topic: str) -> DataFrame:
    """Make the rows that copy records to a topic, without the headers of a dead letter."""
    own = F.filter("record.headers", lambda each: ~each["key"].startswith("dead."))
    return judged.select(
        F.lit(topic).alias("topic"),
        "record.key",
        F.col("record.value").cast("binary").alias("value"),
        own.alias("headers"),
    )


def _letters(judged: DataFrame, topic: str) -> DataFrame:
    """Make the rows of dead letters."""
    values = {name: F.col(f"record.{name[5:]}") for name in PLACE} | {REASON: F.col("reason")}
    added = F.array(
        *(
            F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
            for name, value in values.items()
        )
    )
    return judged.select(
        F.lit(topic).alias("topic"),
        "record.key",
        F.col("record.value").cast("binary").alias("value"),
        F.concat(
            F.coalesce("record.headers", F.array().cast("array<struct<key:string,value:binary>>")), added
        ).alias("headers"),
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster_arguments(parser)
    parser.add_argument("--topic", required=True, help="the topic to clean")
    parser.add_argument("--to", required=True, help="the topic of good rows")
    parser.add_argument("--dead", required=True, help="the topic of dead letters")
    parser.add_argument(
        "--json",
        metavar="COLUMNS",
        default=JSON_COLUMNS,
        help="columns of the JSON values, as 'origin string, month int' (default: those of flights)",
    )
    parser.add_argument(
        "--id",
        metavar="COLUMN,...",
        default="carrier,flight,origin,time_hour",
        help="the columns that name a row (%(default)s)",
    )
    parser.add_argument(
        "--time",
        metavar="COLUMN",
        default="time_hour",
        help="the column with the time of a row (%(default)s)",
    )
    parser.add_argument(
        "--expect",
        metavar="SQL",
        action="append",
        default=[],
        help="a condition of the columns that good rows fulfil; may be repeated",
    )
    parser.add_argument(
        "--watermark", default="1 day", help="how late a row may come, and how late it is known (%(default)s)"
    )
    parser.add_argument(
        "--replay", action="store_true", help="judge the dead letters again; needs a checkpoint of its own"
    )
    parser.add_argument(
        "--mend", metavar="SQL", help="an expression that gives the mended value of a dead letter"
    )
    add_stream_arguments(parser)


def _cleaning(topics: Topics, arguments: argparse.Namespace) -> Cleaning:
    rules = Rules(arguments.json, arguments.id.split(","), arguments.time, arguments.expect)
    return Cleaning(topics, arguments.topic, arguments.to, arguments.dead, rules, arguments.watermark)


def _run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    if arguments.mend is not None and not arguments.replay:
        raise Failed("--mend is for --replay")
    line = ProgressLine("clean")
    job = _cleaning(topics_of(spark, arguments), arguments)
    size, every = arguments.records_per_batch, arguments.every
    _, bounds = job.topics.bounds(job.source)
    for topic in (job.target, job.dead):
        create_topic(job.topics, topic, len(bounds))
    if arguments.replay:
        read = run_query(line, job.replay(arguments.checkpoint, size, arguments.mend, every))
        line.step(f"{read:,} dead letters read; good rows are in the topic '{job.target}'")
        return 0
    run_query(line, job.start(arguments.checkpoint, size, every))
    late = job.audit(bounds)
    line.step(f"good rows are in the topic '{job.target}'; {late:,} rows came late")
    for reason, count in sorted(job.reasons().items()):
        line.step(f"{count:,} dead letters: {reason}")
    return 0


main = main_of("clean", __doc__ or "", _add_arguments, _run)

if __name__ == "__main__":
    sys.exit(main())
