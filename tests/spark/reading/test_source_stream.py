"""Streaming queries in a real Spark: checkpoints, triggers, progress and killed workers."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from odradek import Admin
from odradek.wire.errors import KafkaError
from tests.node_process import RunningNode
from tests.spark.streaming import kill_workers, started, wait_for
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.query import StreamingQuery

Stream = Callable[..., "StreamingQuery"]
ONE_BY_ONE = {"kafka.max.partition.fetch.bytes": 1, "kafka.fetch.max.bytes": 1}
"""Settings with which each fetch returns only one batch."""
Seen = dict[int, list[tuple[int, int]]]


@pytest.fixture
def topics(node: RunningNode) -> Topics:
    return Topics(node.bootstrap)


@pytest.fixture
def stream(
    spark: SparkSession,
    node: RunningNode,
    streams: Callable[[StreamingQuery], StreamingQuery],
    checkpoint: str,
) -> Stream:
    """A function that starts a query from a topic into `seen`, by batch number.

    All queries of a test share a checkpoint.
    """

    def run(
        topic: str,
        seen: Seen,
        trigger: dict[str, Any] | None = None,
        source: str = "odradek",
        **options: Any,
    ) -> StreamingQuery:
        def take(rows: DataFrame, batch: int) -> None:
            seen[batch] = [
                (row.partition, row.offset) for row in rows.select("partition", "offset").collect()
            ]

        reader = spark.readStream.format(source).option("kafka.bootstrap.servers", node.bootstrap)
        frame = reader.option("subscribe", topic).options(**options).load()
        writer = frame.writeStream.option("checkpointLocation", checkpoint).foreachBatch(take)
        if trigger is not None:
            writer = writer.trigger(**trigger)
        return streams(started(writer.start))

    return run


def rows_of(seen: Seen) -> list[tuple[int, int]]:
    """Return the sorted (partition, offset) of the rows of all batches."""
    return sorted(row for rows in seen.values() for row in rows)


class TestStream:
    def test_stops_and_goes_on(
        self,
        node: RunningNode,
        topics: Topics,
        stream: Stream,
        fresh_topic: Callable[[str], str],
    ) -> None:
        """Each record is read once across a restart. Progress and consumer group show the position."""
        name = topics.create(fresh_topic("goes-on"), partitions=2)
        topics.send(name, [b"before"] * 3)
        seen: Seen = {}
        query = stream(name, seen, startingOffsets="earliest")
        topics.send(name, [b"x"] * 4, partition=1)
        wait_for(lambda: len(rows_of(seen)) == 7, query)
        query.stop()
        topics.send(name, [b"while it was away"] * 2)
        query = stream(name, seen, startingOffsets="earliest")
        wait_for(lambda: len(rows_of(seen)) == 9, query)
        assert rows_of(seen) == [*((0, at) for at in range(5)), *((1, at) for at in range(4))]

        def told() -> list[dict[str, Any]]:
            found = [json.loads(each.json)["sources"][0] for each in query.recentProgress]
            return [
                each for each in found if each["endOffset"] and each["endOffset"][name] == {"0": 5, "1": 4}
            ]

        wait_for(lambda: any(each["latestOffset"] for each in told()), query)
        latest = next(each["latestOffset"] for each in told() if each["latestOffset"])
        assert latest[name] == {"0": 5, "1": 4}
        assert latest["@lag"] == {"records": 0, "seconds": 0.0}
        group = told()[-1]["endOffset"]["@group"]

        def lag() -> list[int | None]:
            """Return the lags. They are empty before the first commit, because the group does not exist yet."""
            with Admin(bootstrap_servers=node.bootstrap) as admin, suppress(KafkaError):
                return [each.lag for each in admin.describe_group_lag(group)]
            return []

        topics.send(name, [b"last"])
        wait_for(lambda: lag() == [0, 0], query)

    def test_available_now_with_limits_and_a_killed_worker(
        self, spark: SparkSession, topics: Topics, stream: Stream, fresh_topic: Callable[[str], str]
    ) -> None:
        """If a worker is killed in the middle of a batch, no record is lost or repeated, and the query ends
        normally."""
        name = topics.create(fresh_topic("killed"))
        # Each record is a batch and each fetch returns one batch, so tasks take some time.
        topics.send(name, [b"%d" % number for number in range(1500)], linger_ms=0, batch_size=0)
        seen: Seen = {}
        tracker = spark.sparkContext.statusTracker()

        def first_task_is_done() -> bool:
            infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            return any(info is not None and 0 < info.numCompletedTasks < info.numTasks for info in infos)

        query = stream(
            name,
            seen,
            trigger={"availableNow": True},
            startingOffsets="earliest",
            minPartitions=6,
            **ONE_BY_ONE,
        )
        wait_for(lambda: first_task_is_done() or not query.isActive)
        killed = kill_workers(spark) if query.isActive else 0
        assert query.awaitTermination(120)
        assert query.exception() is None
        assert killed
        assert rows_of(seen) == [(0, at) for at in range(1500)]

    @pytest.mark.parametrize("how", ["killed", "raises"])
    def test_a_task_of_several_ranges_fails_in_the_middle(
        self,
        spark: SparkSession,
        topics: Topics,
        stream: Stream,
        fresh_topic: Callable[[str], str],
        tmp_path: Path,
        how: str,
    ) -> None:
        """A task of several small ranges fails in the middle. Its second attempt reads all of them again, and rows of
        the first are dropped."""
        name = topics.create(fresh_topic("several"), partitions=4)
        for partition in range(4):
            topics.send(name, [b"x"] * 20, partition=partition, linger_ms=0, batch_size=0)
        register_failing(spark, tmp_path / "failed", how)
        seen: Seen = {}
        query = stream(
            name,
            seen,
            trigger={"availableNow": True},
            source="odradek_that_fails",
            startingOffsets="earliest",
            **ONE_BY_ONE,
        )
        assert query.awaitTermination(120)
        assert query.exception() is None
        assert (tmp_path / "failed").read_text() == "4 ranges, 30 rows"
        assert rows_of(seen) == [(partition, at) for partition in range(4) for at in range(20)]

    def test_what_cannot_begin_says_why(
        self, topics: Topics, stream: Stream, fresh_topic: Callable[[str], str]
    ) -> None:
        """If a query cannot start, the error's last line is the reason. There is no Python traceback."""
        for given, reason in (
            (
                {"endingOffsets": "latest"},
                "endingOffsets is only for batch queries: a streaming query has no end",
            ),
            ({}, "cannot be read: it does not exist"),
        ):
            query = stream(fresh_topic("nothing"), {}, **given)
            wait_for(lambda query=query: not query.isActive)  # type: ignore[misc]
            failure = str(query.exception())
            told = failure.split("JVM stacktrace")[0].strip()
            assert reason in told
            assert "UnboundLocalError" not in failure
            assert "Traceback" not in told


def register_failing(spark: SparkSession, failed: Path, how: str) -> None:
    """Register the format `odradek_that_fails`: its first task fails after row 30, and writes its ranges into `failed`."""
    from pyspark.sql.types import StructType

    from odradek.spark.reading.range_partition import RangePartition
    from odradek.spark.source_options import Query, SourceOptions
    from odradek.spark.source_stream import OdradekStreamReader
    from pyspark_odradek import DefaultSource

    # Spark pickles classes within a function by value, so its workers do not need this module.
    class FailingReader(OdradekStreamReader):
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            assert isinstance(partition, RangePartition)
            rows = 0
            for batch in OdradekStreamReader.read(self, partition):
                yield batch
                rows += batch.num_rows
                if rows == 30 and not failed.exists():
                    failed.write_text(f"{len(partition.ranges)} ranges, {rows} rows")
                    if how == "killed":
                        os.kill(os.getpid(), signal.SIGKILL)
                    raise OSError("the task fails in the middle")

    class FailingSource(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "odradek_that_fails"

        def streamReader(self, schema: StructType) -> FailingReader:  # noqa: N802 - Spark's name
            return FailingReader(SourceOptions.parse(self.options, Query.STREAM))

    spark.dataSource.register(FailingSource)
