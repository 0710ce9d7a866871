"""Run a streaming query between two topics whose Python processes kill themselves (`dying_daemon`). For `sink_kills`.

python -m tests.spark.kills.killed_sink_query BOOTSTRAP FROM TO CHECKPOINT ROWS_PER_BATCH DELIVERY [CLUSTER]

With CLUSTER (`spark://HOST:PORT`) the query runs on separate executors, and Spark starts duplicates of slow tasks. With
DELIVERY two-phase the plan shuffles its rows randomly, and duplicates are started early.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from testkit.kafka_server import SHORT_LIVED
from tests.spark.kills.dying_daemon import DRIVER, KILLS
from tests.spark.streaming import started

TWO_PHASE = "two-phase"
_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "1s",
}
_EAGERLY = {
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "20ms",
}
"""Settings that start duplicates of tasks that are hardly slow. In two-phase delivery, duplicates may have other rows."""


def main(
    bootstrap: str,
    origin: str,
    target: str,
    checkpoint: str,
    rows_per_batch: str,
    delivery: str,
    cluster: str = "",
) -> None:
    """Copy all records of the topic, in batches of this many rows with three tasks each."""
    settings = {
        "spark.ui.enabled": "false",
        # The log would be full of messages about the kills. Errors that end the query are raised.
        "spark.log.level": "OFF",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": f"{checkpoint}.local",
        "spark.driver.extraJavaOptions": " ".join(SHORT_LIVED[1:]),
    }
    if cluster:
        settings |= {
            **_SPECULATION,
            **(_EAGERLY if delivery == TWO_PHASE else {}),
            "spark.task.maxFailures": "60",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": " ".join(SHORT_LIVED[1:]),
            f"spark.executorEnv.{KILLS}": os.environ[KILLS],
            "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        }
    builder = SparkSession.builder.master(cluster or "local[2,60]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    server = {"kafka.bootstrap.servers": bootstrap}
    options = {
        **server,
        "subscribe": origin,
        "startingOffsets": "earliest",
        "minPartitions": "3",
        "maxOffsetsPerTrigger": rows_per_batch,
    }
    rows = spark.readStream.format("odradek").options(**options).load().select("key", "value")
    if delivery == TWO_PHASE:
        # The rows of a task differ in each run.
        rows = rows.repartition(3, expr("rand()"))
    writer = rows.writeStream.format("odradek").options(**server, topic=target, delivery=delivery)
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    while True:
        left = _commits_to_kill()
        try:
            started(writer.start).awaitTermination()
            return
        except StreamingQueryException:
            # A killed commit ends the query, which restarts from its checkpoint.
            if _commits_to_kill() == left:
                raise


def _commits_to_kill() -> int:
    return len(list(Path(os.environ[KILLS]).glob(f"*-{DRIVER}*")))


if __name__ == "__main__":
    main(*sys.argv[1:])
