"""A streaming query from one topic to another, whose workers die as `two_phase_daemon` says.

python -m tests.spark.killed_two_phase_query BOOTSTRAP FROM TO CHECKPOINT ROWS_PER_BATCH MASTER

A process, for `two_phase_kills`. The plan shuffles its rows by chance. Slow tasks get twins (speculation) where MASTER is
a cluster.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from tests.spark.streaming import started


def main(bootstrap: str, origin: str, target: str, checkpoint: str, rows_per_batch: str, master: str) -> None:
    """Copy all that is there, in batches of this many rows and three tasks each."""
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.log.level", "ERROR")
    builder = builder.config("spark.python.daemon.module", "tests.spark.two_phase_daemon")
    builder = builder.config("spark.task.maxFailures", "60").config("spark.speculation", "true")
    builder = builder.config("spark.speculation.interval", "50ms").config("spark.speculation.quantile", "0.3")
    spark = builder.config("spark.speculation.minTaskRuntime", "20ms").getOrCreate()
    server = {"kafka.bootstrap.servers": bootstrap}
    options = {
        **server,
        "subscribe": origin,
        "startingOffsets": "earliest",
        "minPartitions": "3",
        "maxOffsetsPerTrigger": rows_per_batch,
    }
    frame = spark.readStream.format("odradek").options(**options).load()
    # Which task has which row is another thing in each run.
    rows = frame.select("key", "value").repartition(3, expr("rand()"))
    writer = rows.writeStream.format("odradek").options(**server, topic=target, delivery="two-phase")
    query = started(writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
