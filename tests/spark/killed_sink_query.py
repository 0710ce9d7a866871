"""A streaming query from one topic to another, whose workers die as `dying_daemon` says. A process, for `sink_kills`.

python -m tests.spark.killed_sink_query BOOTSTRAP FROM TO CHECKPOINT ROWS_PER_BATCH
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from tests.spark.streaming import started


def main(bootstrap: str, origin: str, target: str, checkpoint: str, rows_per_batch: str) -> None:
    """Copy all that is there, in batches of this many rows and three tasks each."""
    builder = SparkSession.builder.master("local[2,60]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.log.level", "ERROR")
    builder = builder.config("spark.python.daemon.module", "tests.spark.dying_daemon")
    spark = builder.getOrCreate()
    server = {"kafka.bootstrap.servers": bootstrap}
    options = {
        **server,
        "subscribe": origin,
        "startingOffsets": "earliest",
        "minPartitions": "3",
        "maxOffsetsPerTrigger": rows_per_batch,
    }
    frame = spark.readStream.format("odradek").options(**options).load()
    writer = frame.select("key", "value").writeStream.format("odradek").options(**server, topic=target)
    query = started(writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
