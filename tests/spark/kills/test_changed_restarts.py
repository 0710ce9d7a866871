"""Restarts of a real streaming query that change what the sink's sentences may seem to suggest.

The first batch has three tasks. Two of them commit, and task 0 fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

import pyarrow as pa
from pyspark.errors import StreamingQueryException

from testkit.processes import ServerProcess
from tests.spark.delivery.test_two_phase_kills import server
from tests.spark.delivery.test_two_phase_spark import values_of
from tests.spark.streaming import patiently
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["server"]
_PARTITIONS = 3
_ROWS = 100


def _failing(bootstrap: str, folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a plan whose task 0 fails when the other tasks have committed, as long as the folder has
    the file `fails`.
    """

    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        from pyspark import TaskContext

        from odradek.client.shells.blocking import Client

        context = TaskContext.get()
        assert context is not None
        if (Path(folder) / "fails").exists() and context.partitionId() == 0:
            query = context.getLocalProperty("sql.streaming.queryId")
            names = [f"odradek-spark-{query}-{task}" for task in range(1, _PARTITIONS)]
            with Client(bootstrap) as client:
                while {each.state for each in client.admin.describe_transactions(names)} != {
                    "CompleteCommit"
                }:
                    time.sleep(0.05)
            raise RuntimeError("this task fails")
        yield from batches

    return function


def test_a_restart_of_a_batch_that_has_begun(
    spark: SparkSession,
    server: ServerProcess,
    fresh_topic: Callable[[str], str],
    streams: Callable[[StreamingQuery], StreamingQuery],
    tmp_path: Path,
) -> None:
    """Other delivery modes and more tasks are refused, and add nothing. With the first plan each row is there once,
    and then the query may change its mode."""
    topics = Topics(server.bootstrap)
    origin = topics.create(fresh_topic("from"), partitions=_PARTITIONS)
    target = topics.create(fresh_topic("to"), partitions=2)
    for part in range(_PARTITIONS):
        values = [b"%d" % number for number in range(part * _ROWS, (part + 1) * _ROWS)]
        topics.send(origin, values, partition=part)
    options = {"kafka.bootstrap.servers": server.bootstrap}
    work = _failing(server.bootstrap, str(tmp_path))

    def run(delivery: str, **more: str) -> None:
        records = spark.readStream.format("odradek").options(**options, subscribe=origin, minPartitions=3)
        if "minPartitions" in more:
            records = records.option("minPartitions", more.pop("minPartitions"))
        frame = records.option("startingOffsets", "earliest").load().select("value")
        frame = frame.mapInArrow(work, "value binary")
        writer = frame.writeStream.format("odradek").options(**options, topic=target, delivery=delivery)
        writer = writer.options(**more, checkpointLocation=str(tmp_path / "checkpoint"))
        assert streams(writer.trigger(availableNow=True).start()).awaitTermination(300)

    def committed() -> Counter[int]:
        return values_of(server.bootstrap, target)

    (tmp_path / "fails").touch()
    with pytest.raises(StreamingQueryException, match="this task fails"):
        patiently(lambda: run("exactly-once"))
    (tmp_path / "fails").unlink()
    before = committed()
    assert before == Counter(range(_ROWS, _PARTITIONS * _ROWS))
    for delivery, more, sentence in (
        ("two-phase", {}, "began with delivery=exactly-once"),
        ("at-least-once", {}, "began with another delivery"),
        ("exactly-once", {"minPartitions": "12"}, "odradek spark finish"),
    ):
        with pytest.raises(StreamingQueryException, match=sentence):
            patiently(partial(run, delivery, **more))
        assert committed() == before
    patiently(lambda: run("exactly-once"))
    assert committed() == Counter(range(_PARTITIONS * _ROWS))
    topics.send(origin, [b"300"])
    patiently(lambda: run("two-phase", minPartitions="12"))
    assert committed() == Counter(range(_PARTITIONS * _ROWS + 1))
