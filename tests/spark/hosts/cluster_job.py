"""A job that `spark-submit` runs on a cluster with several hosts. For `test_hosts`.

    spark-submit --master MASTER cluster_job.py FUNCTION SETTINGS

The job runs the function FUNCTION of this file, and SETTINGS is JSON with its arguments. The last line of output is JSON, with
the facts about Spark that the function has seen. The executors' environment lacks the tests, so this file imports none.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

WAIT_SECONDS = 240
STARTS_MAX = 12
TOO_SLOW = "failed to connect back"
"""Spark's message about a Python process that took more than ten seconds to start."""
BATCH_ID = "streaming.sql.batchId"
"""The local property in which Spark passes the number of the micro-batch to a task."""


def wait_for(what: Callable[[], bool], query: StreamingQuery | None = None) -> None:
    """Wait until the condition is true. Raises the error that ended the query, or `AssertionError` after four minutes."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not what():
        failure = query.exception() if query is not None else None
        if failure is not None:
            raise failure
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.05)


def executors(spark: SparkSession) -> int:
    """Return the number of executors that the driver has at present."""
    return spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1  # type: ignore[union-attr]  # a classic session


def rows_read(query: StreamingQuery) -> int:
    """Return the rows of the query's finished batches."""
    return sum(each.numInputRows for each in query.recentProgress)


def read(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """Load the values of a topic as a batch."""
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "minPartitions": "8"}
    return spark.read.format("odradek").options(**options).load().select("value")


def write(rows: DataFrame, bootstrap: str, topic: str) -> None:
    """Append values to a topic as a batch."""
    server = {"kafka.bootstrap.servers": bootstrap}
    rows.write.format("odradek").options(**server, topic=topic).mode("append").save()


def stream(spark: SparkSession, bootstrap: str, origin: str, batch_rows: int) -> DataFrame:
    """Load the values of a topic as a stream, with at most this many rows in a batch."""
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": origin,
        "startingOffsets": "earliest",
        "minPartitions": "4",
        "maxOffsetsPerTrigger": str(batch_rows),
    }
    return spark.readStream.format("odradek").options(**options).load().select("value")


def start(rows: DataFrame, bootstrap: str, topic: str, checkpoint: str, **trigger: object) -> StreamingQuery:
    """Start a query that appends values to a topic, and wait until its source is created."""
    options = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "checkpointLocation": checkpoint}
    writer = rows.writeStream.format("odradek").options(**options)
    if trigger:
        writer = writer.trigger(**trigger)  # type: ignore[call-overload]  # Spark's triggers
    return started(writer.start)


def started(begin: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query, and repeat this if its source's Python process took too long, as `tests/spark/streaming.py` does."""
    for _ in range(STARTS_MAX):
        query = begin()
        wait_for(lambda query=query: not begins(query))  # type: ignore[misc]
        failure = query.exception()
        if failure is None or TOO_SLOW not in str(failure):
            break
    return query


def begins(query: StreamingQuery) -> bool:
    """True if the query still creates its source."""
    return query.isActive and str(query.status["message"]).startswith("Initializing")


def copy(
    spark: SparkSession,
    bootstrap: str,
    origin: str,
    batch: str,
    streamed: str,
    folder: str,
    *,
    register: bool,
) -> dict[str, int]:
    """Copy a topic as a batch, and again as a stream. With `register`, name the format's class by hand."""
    if register:
        import pyspark_odradek

        spark.dataSource.register(pyspark_odradek.DefaultSource)
    write(read(spark, bootstrap, origin), bootstrap, batch)
    query = start(
        stream(spark, bootstrap, origin, 500), bootstrap, streamed, f"{folder}/checkpoint", availableNow=True
    )
    query.awaitTermination()
    return {"rows": rows_read(query)}


def shuffle(spark: SparkSession, bootstrap: str, origin: str, target: str) -> dict[str, int]:
    """Copy a topic through a shuffle with Spark's default number of partitions, 200; adaptive execution joins them."""
    rows = read(spark, bootstrap, origin).repartition("value")
    spark.sparkContext.setJobGroup("copy", "copy")
    write(rows, bootstrap, target)
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(each) for each in tracker.getJobIdsForGroup("copy")]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    # The last stage writes.
    return {"tasks": max((each.stageId, each.numTasks) for each in stages if each is not None)[1]}


def allocate(
    spark: SparkSession, bootstrap: str, origin: str, target: str, folder: str, rounds: int, rows: int
) -> dict[str, int]:
    """Copy a topic by one query. Each round sends rows, and waits until they are copied and all executors have left."""
    from odradek import Producer

    query = start(stream(spark, bootstrap, origin, rows), bootstrap, target, f"{folder}/checkpoint")
    for done in range(rounds):
        with Producer(bootstrap_servers=bootstrap) as producer:
            for number in range(done * rows, (done + 1) * rows):
                producer.send(origin, value=b"%d" % number)
        wait_for(lambda done=done: rows_read(query) >= (done + 1) * rows, query)  # type: ignore[misc]
        wait_for(lambda: executors(spark) == 0, query)
    assert query.isActive
    query.stop()
    return {"rows": rows_read(query)}


def twins(spark: SparkSession, bootstrap: str, origin: str, target: str, folder: str) -> dict[str, int]:
    """Copy a topic with a slow task in each batch. It waits until its speculative twin has begun, so that both write."""

    def wait_for_twin(value: bytes) -> bytes:
        context = TaskContext.get()
        assert context is not None
        twin = Path(folder) / f"twin-{context.getLocalProperty(BATCH_ID)}"
        if context.partitionId() == 0 and context.attemptNumber() > 0:
            twin.touch()
        elif context.partitionId() == 0:
            deadline = time.monotonic() + WAIT_SECONDS
            while not twin.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
        return value

    # A function on Arrow batches would need pandas in the environment.
    slow = udf(wait_for_twin, "binary", useArrow=False)
    rows = stream(spark, bootstrap, origin, 1000).select(slow("value").alias("value"))
    query = start(rows, bootstrap, target, f"{folder}/checkpoint", availableNow=True)
    query.awaitTermination()
    batches = sum(each.numInputRows > 0 for each in query.recentProgress)
    return {"batches": batches, "twins": len(list(Path(folder).glob("twin-*")))}


def decommission(
    spark: SparkSession, bootstrap: str, origin: str, target: str, folder: str, *, worker: int
) -> dict[str, int]:
    """Copy a topic in many batches. After the first ones, decommission the worker with this process id."""
    query = start(
        stream(spark, bootstrap, origin, 200), bootstrap, target, f"{folder}/checkpoint", availableNow=True
    )
    wait_for(lambda: rows_read(query) > 0 and executors(spark) == 2, query)
    before = rows_read(query)
    os.kill(worker, signal.SIGPWR)
    query.awaitTermination()
    wait_for(lambda: executors(spark) == 1)
    return {"before": before, "rows": rows_read(query)}


JOBS: dict[str, Callable[..., dict[str, int]]] = {
    each.__name__: each for each in (copy, shuffle, allocate, twins, decommission)
}


def main(what: str, settings: str) -> None:
    """Run one of the jobs, and print what it has seen."""
    builder = SparkSession.builder
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    seen = JOBS[what](spark, **json.loads(settings))
    spark.stop()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
