"""Run a streaming query, and print what Spark shows of it. For `test_watching`.

    python -m tests.spark.sessions.watched_session BOOTSTRAP TOPIC CHECKPOINT

Standard output gets one object of JSON: the driver's page for Prometheus, the page of the query, and its progress.
"""

from __future__ import annotations

import json
import sys
from urllib.request import urlopen

from pyspark.sql import SparkSession

SERVLET = "spark.metrics.conf.*.sink.prometheusServlet"
SETTINGS = {
    "spark.ui.port": "0",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.metrics.namespace": "job",
    "spark.sql.streaming.metricsEnabled": "true",
    f"{SERVLET}.class": "org.apache.spark.metrics.sink.PrometheusServlet",
    f"{SERVLET}.path": "/metrics/prometheus",
}


def main(bootstrap: str, topic: str, checkpoint: str) -> None:
    """Run the query with half of the records, then print the pages."""
    builder = SparkSession.builder.master("local[2]")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    stream = spark.readStream.format("odradek").options(**options, maxOffsetsPerTrigger="10").load()
    writer = stream.writeStream.format("noop").queryName("watched").option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="200 milliseconds").start()
    query.processAllAvailable()
    address = spark.sparkContext.uiWebUrl
    pages = {}
    for page in (
        "metrics/prometheus",
        "StreamingQuery/",
        f"StreamingQuery/statistics/?id={query.runId}",
        "SQL/",
    ):
        with urlopen(f"{address}/{page}", timeout=60) as answer:
            pages[page] = answer.read().decode()
    print(json.dumps({"pages": pages, "progress": [json.loads(each.json) for each in query.recentProgress]}))
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
