"""Run a job against a server of Spark Connect, in a Python without odradek. For `test_connect_server`.

    python connect_client.py URL BOOTSTRAP FROM BATCH STREAMED EACH FOLDER

The job copies the topic FROM to the other three: as a batch, as a stream, and by `foreachBatch`. It prints `done`.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.spark.streaming import patiently


def finish(writer: DataStreamWriter) -> None:
    """Run a query until it has written all rows that are there."""
    writer.trigger(availableNow=True).start().awaitTermination()


def main(url: str, bootstrap: str, origin: str, batch: str, streamed: str, each: str, folder: str) -> None:
    """Copy the topic in three ways."""
    # The folder of this repository is on the path of the tests' Python.
    sys.path = [each for each in sys.path if not os.path.exists(os.path.join(each, "odradek"))]
    try:
        import odradek
    except ModuleNotFoundError:
        odradek = None
    assert odradek is None, "the client would prove nothing"
    spark = SparkSession.builder.remote(url).getOrCreate()
    server = {"kafka.bootstrap.servers": bootstrap}
    options = {**server, "subscribe": origin}
    rows = spark.read.format("odradek").options(**options).load().select("value")
    rows.write.format("odradek").options(**server, topic=batch).mode("append").save()
    stream = spark.readStream.format("odradek").options(**options, startingOffsets="earliest").load()
    writer = stream.select("value").writeStream.format("odradek").options(**server, topic=streamed)
    writer = writer.option("checkpointLocation", f"{folder}/streamed")
    patiently(lambda: finish(writer))

    def write(frame: DataFrame, batch_id: int) -> None:
        job = {"topic": each, "txnAppId": each, "txnVersion": str(batch_id)}
        frame.write.format("odradek").options(**server, **job).mode("append").save()

    by_batch = stream.select("value").writeStream.foreachBatch(write)
    by_batch = by_batch.option("checkpointLocation", f"{folder}/each")
    patiently(lambda: finish(by_batch))
    spark.stop()
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
