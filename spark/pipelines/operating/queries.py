"""The queries that the job `operate` runs: late flights, and the flights of each hour. Both write exactly once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's usual name
from pyspark.sql.streaming.query import StreamingQuery

from odradek.client.core.partition_offsets import EARLIEST
from odradek.spark.pipelines.flights import JSON_COLUMNS
from odradek.spark.pipelines.job import Topics
from odradek.spark.pipelines.operating.checkpoints import finished_offsets, lag_records
from odradek.spark.pipelines.operating.supervisor import Supervised
from odradek.spark.pipelines.streams import start_query, topic_writer

__all__ = ["RULE", "WATERMARK", "Code", "Operated", "hours", "late"]

_POOL = "spark.scheduler.pool"
RULE = "dep_delay > 60"
WATERMARK = "1 day"


@attrs.frozen
class Code:
    """What the user may change between two runs: it stands for the code of the queries."""

    rule: str = RULE
    """The SQL condition of a late flight."""
    by: Sequence[str] = ("origin",)
    """The columns by which the flights of an hour are counted."""
    watermark: str = WATERMARK


def late(flights: DataFrame, code: Code) -> DataFrame:
    """Select the flights that fulfil the rule, unchanged. The query has no state."""
    return flights.where(code.rule).select("key", "value")


def hours(flights: DataFrame, code: Code) -> DataFrame:
    """Count flights, and sum up their delays, by hour and the columns `by`. The sums are the query's state."""
    sums = (
        flights.withWatermark("time_hour", code.watermark)
        .groupBy(F.window("time_hour", "1 hour"), *code.by)
        .agg(F.count(F.lit(1)).alias("flights"), F.sum("dep_delay").alias("delay"))
        .select("window.start", *code.by, "flights", "delay")
    )
    key = F.concat_ws(" ", F.date_format("start", "yyyy-MM-dd'T'HH:mm"), *code.by)
    return sums.select(key.alias("key"), F.to_json(F.struct(*sums.columns)).alias("value"))


@attrs.frozen
class Operated:
    """The topics, checkpoints and limits of the queries."""

    topics: Topics
    source: str
    late: str
    hours: str
    checkpoints: Path
    code: Code = attrs.field(factory=Code)
    start_from: Path | None = None
    """A copy of the checkpoints, where a new query without state starts; None for the earliest record. A query with state
    always starts there, since its state is empty."""
    records_per_batch: int = 50_000
    every_seconds: float | None = None

    def queries(self) -> list[Supervised]:
        """Make both queries. None of them has started."""
        begun = {} if self.start_from is None else finished_offsets(self.start_from / "late")
        return [
            self._supervised("late", late, self.late, begun.get(self.source, {})),
            self._supervised("hours", hours, self.hours, {}),
        ]

    def _supervised(
        self,
        name: str,
        rows: Callable[[DataFrame, Code], DataFrame],
        target: str,
        begin: Mapping[int, int],
    ) -> Supervised:
        """Make a query. `begin` are the offsets at which it starts if it has no checkpoint."""
        checkpoint = self.checkpoints / name

        def start() -> StreamingQuery:
            # Queries of one application share its cores. A pool for each lets a small batch run beside a large one.
            self.topics.spark.sparkContext.setLocalProperty(_POOL, name)
            writer = rows(self._flights(begin), self.code).writeStream.queryName(name).outputMode("append")
            return start_query(topic_writer(writer, self.topics, target), str(checkpoint), self.every_seconds)

        return Supervised(name, checkpoint, start, lambda: self._lag(checkpoint, begin))

    def _flights(self, begin: Mapping[int, int]) -> DataFrame:
        records = self.topics.read_stream(
            self.source,
            startingOffsets=self._starting_offsets(begin),
            maxOffsetsPerTrigger=str(self.records_per_batch),
        )
        parsed = F.from_json(F.col("value").cast("string"), JSON_COLUMNS).alias("flight")
        return records.select("key", "value", parsed).select("key", "value", "flight.*")

    def _starting_offsets(self, begin: Mapping[int, int]) -> str:
        """Return where a query without a checkpoint starts. A query with one ignores it."""
        if not begin:
            return "earliest"
        _, bounds = self.topics.bounds(self.source)
        return json.dumps({self.source: {str(each): begin.get(each, EARLIEST) for each in bounds}})

    def _lag(self, checkpoint: Path, begin: Mapping[int, int]) -> int:
        done = finished_offsets(checkpoint).get(self.source, begin)
        return lag_records(self.topics.bounds(self.source)[1], done)
