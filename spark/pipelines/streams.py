"""The parts that all streaming jobs share: arguments of a query, its trigger, and its run to the end."""

from __future__ import annotations

import argparse

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from odradek.spark.pipelines.job import Failed, Topics
from odradek.spark.pipelines.progress import ProgressLine, watch_query

__all__ = ["Failures", "add_stream_arguments", "run_query", "start_query", "topic_writer"]


def add_stream_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a streaming query: its checkpoint, and when it reads how much."""
    parser.add_argument("--checkpoint", required=True, help="the directory of the query's checkpoint")
    parser.add_argument("--records-per-batch", type=int, default=50_000, help="(%(default)s)")
    parser.add_argument(
        "--every", type=float, metavar="SECONDS", help="run until it is stopped, with a batch every SECONDS"
    )


def start_query(
    writer: DataStreamWriter, checkpoint: str, every_seconds: float | None = None
) -> StreamingQuery:
    """Start a query. Without `every_seconds`, it ends when it has read all present records."""
    writer = writer.option("checkpointLocation", checkpoint)
    if every_seconds is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{int(every_seconds * 1000)} milliseconds").start()


def topic_writer(writer: DataStreamWriter, topics: Topics, target: str | None = None) -> DataStreamWriter:
    """Let a writer write to a topic. Without a `target`, the rows have a column `topic`."""
    writer = writer.format(topics.format).options(**topics.options).options(**topics.writing)
    return writer if target is None else writer.option("topic", target)


class Failures:
    """The sentence with which a function of `foreachBatch` has ended its query.

    Spark wraps an exception of such a function in one of its own, with both stack traces.
    """

    def __init__(self) -> None:
        self.failed: Failed | None = None

    def fail(self, failed: Failed) -> None:
        """Keep the failure, and raise it to end the query."""
        self.failed = failed
        raise failed


def run_query(line: ProgressLine, query: StreamingQuery, failures: Failures | None = None) -> int:
    """Show the progress of a query until it ends, and return the number of records that it read.

    Raises `Failed` if a function of `foreachBatch` has said why it ended, and otherwise the query's error.
    """
    try:
        return sum(int(each["rows"]) for each in watch_query(line, query))
    except StreamingQueryException:
        if failures is not None and failures.failed is not None:
            raise failures.failed from None
        raise
    finally:
        query.stop()
