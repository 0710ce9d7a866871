"""The job that keeps a Delta table equal to a table of a database, by Debezium's change events in a topic.

The topic has the snapshot of the table and then the stream of its changes. Each batch of the query becomes one MERGE: rows
are inserted, updated and deleted. The database's own log decides the order of changes. So events that come twice (a
connector was restarted) or in another order (a topic was repartitioned) give the same table. The job may be killed at any
moment: a repeated batch changes nothing.

    odradek spark cdc --topic fleet --table fleet.delta --checkpoint fleet.checkpoint --keys tailnum \\
        --columns 'tailnum string, manufacturer string, model string, seats int, airport string, flights int'

MERGE is that of the package deltalake (the extra `delta`), so no jar is needed. Each row also has `_position` and
`_changed_ms`: the place of its last change in the database's log, and its time. An event that cannot be applied ends the
job, with its place and the reason. Read a compacted topic more often than its `min.compaction.lag.ms`. After that time
the tombstone of a deletion may be all that is left of it, and tombstones are not applied.
"""

from __future__ import annotations

import argparse
import sys

import attrs
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from odradek.spark.pipelines.cdc.envelopes import FAULT, Captured, changes, last_changes
from odradek.spark.pipelines.cdc.merging import MergedTable
from odradek.spark.pipelines.job import Failed, Topics, add_cluster_arguments, main_of, topics_of
from odradek.spark.pipelines.progress import ProgressLine
from odradek.spark.pipelines.streams import Failures, add_stream_arguments, run_query, start_query
from odradek.spark.pipelines.tables.delta import require_delta
from odradek.spark.pipelines.tables.landing import Landing, table_path

__all__ = ["Capture", "main"]

_MS_PER_DAY = 24 * 3600 * 1000


@attrs.frozen
class Capture:
    """One topic of change events, and the table that follows it."""

    topics: Topics
    topic: str
    captured: Captured
    table: MergedTable
    failures: Failures = attrs.field(factory=Failures)

    def start(
        self, checkpoint: str, records_per_batch: int, every_seconds: float | None = None
    ) -> StreamingQuery:
        """Start the query. Without `every_seconds`, it ends when it has applied all present events."""
        records = self.topics.read_stream(
            self.topic, startingOffsets="earliest", maxOffsetsPerTrigger=str(records_per_batch)
        )
        rows = changes(records, self.captured)
        return start_query(rows.writeStream.foreachBatch(self._merge_batch), checkpoint, every_seconds)

    def _merge_batch(self, rows: DataFrame, batch: int) -> None:
        """Called for each batch of the query: merge its changes into the table."""
        # The rows are used twice, but are read and parsed once.
        rows.persist()
        try:
            faults = rows.where(f"{FAULT} is not null").orderBy("partition", "offset").limit(1).collect()
            if faults:
                place = f"{self.topic}-{faults[0]['partition']} at offset {faults[0]['offset']}"
                self.failures.fail(Failed(f"the event of {place} {faults[0][FAULT]}"))
            last = last_changes(rows, self.captured).toArrow()
        finally:
            rows.unpersist()
        try:
            self.table.merge(last)
        except Failed as failed:
            self.failures.fail(failed)


def captured_of(columns: str, keys: str, position: str) -> Captured:
    """Make the captured table from the words of the command line. Raises `Failed` for an invalid schema or key."""
    try:
        schema = StructType.fromDDL(columns)
    except PySparkException as error:
        raise Failed(f"--columns is no schema, like 'id int, name string': {error}") from None
    if not isinstance(schema, StructType):
        raise Failed(f"--columns is one type, not columns like 'id int, name string': {columns}")
    names = keys.split(",")
    for name in names:
        if name not in schema.names:
            raise Failed(f"--keys names the column '{name}', which --columns lacks")
    return Captured(schema, names, position)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster_arguments(parser)
    parser.add_argument("--topic", required=True, help="the topic of Debezium's change events of one table")
    parser.add_argument(
        "--table", required=True, help="directory of the Delta table; it is created if it does not exist"
    )
    parser.add_argument(
        "--columns", required=True, help="columns of the table, as 'tailnum string, seats int'"
    )
    parser.add_argument(
        "--keys", required=True, metavar="COLUMN,...", help="columns of the table's primary key"
    )
    parser.add_argument(
        "--position",
        default="lsn",
        metavar="FIELD",
        help="the field of `source` with the place in the database's log, a whole number (%(default)s)",
    )
    parser.add_argument(
        "--keep-deletions",
        type=float,
        default=7,
        metavar="DAYS",
        help="how much later than the deletion of a row an older change of it may come (%(default)s)",
    )
    add_stream_arguments(parser)


def _run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    line = ProgressLine("cdc")
    path = table_path(arguments.table).resolve()
    capture = Capture(
        topics_of(spark, arguments),
        arguments.topic,
        captured_of(arguments.columns, arguments.keys, arguments.position),
        MergedTable(path, arguments.keys.split(","), int(arguments.keep_deletions * _MS_PER_DAY)),
    )
    with Landing(path, "load").locked():
        query = capture.start(arguments.checkpoint, arguments.records_per_batch, arguments.every)
        read = run_query(line, query, capture.failures)
    line.step(f"{read:,} events read; the table is {path}")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    require_delta("this job")


main = main_of("cdc", __doc__ or "", _add_arguments, _run, _check)

if __name__ == "__main__":
    sys.exit(main())
