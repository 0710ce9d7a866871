"""Run a job that only has a remote session (Spark Connect), in a process. For `test_whole_sessions`.

    python -m tests.spark.sessions.connect_session BOOTSTRAP FROM TO CHECKPOINT

The job copies the topic FROM to TO as a batch, and again as a stream. Then it uses invalid options. The last line of
output is JSON, with the number of rows in TO after each copy and the texts of the errors.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(bootstrap: str, origin: str, target: str, checkpoint: str) -> None:
    """Copy the topic twice, use invalid options, and print row counts and errors."""
    # Start the session's server on a local cluster, with executors apart from the driver.
    builder = SparkSession.builder.remote("local-cluster[2,1,1024]")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.executor.memory": "1g",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": f"{checkpoint}.local",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    server = {"kafka.bootstrap.servers": bootstrap}

    def read(topic: str, **options: str) -> int:
        return spark.read.format("odradek").options(**server, subscribe=topic, **options).load().count()

    frame = spark.read.format("odradek").options(**server, subscribe=origin).load().select("key", "value")
    frame.write.format("odradek").options(**server, topic=target).mode("append").save()
    rows = [read(target)]
    stream = spark.readStream.format("odradek").options(
        **server, subscribe=origin, startingOffsets="earliest"
    )
    writer = stream.load().select("key", "value").writeStream.format("odradek")
    writer = writer.options(**server, topic=target, checkpointLocation=checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    rows.append(read(target))
    errors = []
    for options in ({"failOnDataLoss": "perhaps"}, {"startingTimestamp": "99999999999999"}):
        try:
            read(origin, **options)
        except Exception as error:  # noqa: BLE001 - the text is what the user would see
            errors.append(str(error))
    spark.stop()
    print(json.dumps({"rows": rows, "errors": errors}))


if __name__ == "__main__":
    main(*sys.argv[1:])
