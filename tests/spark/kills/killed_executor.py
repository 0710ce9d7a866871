"""Run a job on a small Spark cluster and kill one executor in the middle of a batch. For `test_killed_executor`.

    python -m tests.spark.kills.killed_executor BOOTSTRAP FROM TO CHECKPOINT

Two executors of one core copy the topic FROM to the topic TO with the trigger AvailableNow, in one batch of many tasks.
When the first task is done, the Java process of one executor is killed with SIGKILL. At the end, a line of JSON has the
numbers of killed executors, of all executors and of records read (`numInputRows`). It also lists the values in TO, and
names the version of Spark.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from testkit.kafka_server import SHORT_LIVED
from tests.spark.kills.executors import executors_of
from tests.spark.streaming import started, wait_for


def in_the_middle(spark: SparkSession, query: StreamingQuery) -> bool:
    """True if some tasks of a batch are done and others are not, or if the query has already ended."""
    tracker = spark.sparkContext.statusTracker()
    infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return not query.isActive or any(
        info is not None and 0 < info.numCompletedTasks < info.numTasks for info in infos
    )


def main(bootstrap: str, origin: str, target: str, checkpoint: str) -> None:
    """Copy the topic on two executors, kill one of them in the middle of the batch, and print the outcome."""
    builder = SparkSession.builder.master("local-cluster[2,1,512]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.executor.memory", "512m").config("spark.log.level", "ERROR")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    for process in ("driver", "executor"):
        builder = builder.config(f"spark.{process}.extraJavaOptions", " ".join(SHORT_LIVED[1:]))
    spark = builder.config("spark.local.dir", f"{checkpoint}.local").getOrCreate()
    server = {"kafka.bootstrap.servers": bootstrap}
    options = {
        **server,
        "subscribe": origin,
        "startingOffsets": "earliest",
        "minPartitions": "8",
        "kafka.max.partition.fetch.bytes": "1",
        "kafka.fetch.max.bytes": "1",
    }
    frame = spark.readStream.format("odradek").options(**options).load()
    writer = frame.select("value").writeStream.format("odradek").options(**server, topic=target)
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query = started(writer.start)
    seen: set[int] = set()
    wait_for(lambda: in_the_middle(spark, query))
    before = executors_of(os.getpid())
    killed = before[:1] if query.isActive else []
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    while query.isActive:
        seen |= set(executors_of(os.getpid()))
        query.awaitTermination(1)
    failure = query.exception()
    if failure is not None:
        raise failure
    committed = {**server, "kafka.isolation.level": "read_committed"}
    reader = spark.read.format("odradek").options(**committed, subscribe=target).load()
    values = [row.value.decode() for row in reader.selectExpr("cast(value as binary) as value").collect()]
    rows = sum(each.numInputRows for each in query.recentProgress)
    told = {
        "killed": len(killed),
        "executors": len(seen | set(before)),
        "rows": rows,
        "values": values,
        "spark": spark.version,
    }
    print(json.dumps(told), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
