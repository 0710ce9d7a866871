"""Run a job that logs in with a password, and print everything that Spark shows about it. For `test_whole_sessions`.

    python -m tests.spark.sessions.secret_session DIRECTORY TOPIC OPTIONS

OPTIONS is JSON. The job reads and writes the topic, as a batch and as a stream, and fails once. Standard output gets
Spark's web pages, metrics, plans, progress and errors. Its log at level INFO goes to standard error, and its event log
to DIRECTORY.
"""

from __future__ import annotations

import json
import sys
from urllib.request import urlopen

from pyspark.sql import SparkSession


def main(directory: str, topic: str, options_json: str) -> None:
    """Run the job, then print all of Spark's pages and the responses of its REST interface."""
    options = json.loads(options_json)
    builder = SparkSession.builder.master("local[2]")
    for key, value in {
        "spark.ui.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{directory}",
        "spark.eventLog.compress": "false",
        "spark.local.dir": f"{directory}/local",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    rows = spark.range(50).selectExpr("cast(id as string) as value")
    rows.write.format("odradek").options(**options, topic=topic).mode("append").save()
    read = spark.read.format("odradek").options(**options, subscribe=topic).load()
    print(read.count(), read._jdf.queryExecution().toString())
    read.explain("extended")
    read.createOrReplaceTempView("seen")
    spark.sql("SELECT count(*) FROM seen").show()
    stream = spark.readStream.format("odradek").options(
        **options, subscribe=topic, startingOffsets="earliest"
    )
    writer = stream.load().select("value").writeStream.format("odradek").options(**options, topic=topic)
    query = writer.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    query.explain(True)
    print([each.json for each in query.recentProgress])
    try:
        spark.read.format("odradek").options(**options, subscribe=topic, failOnDataLoss="perhaps").load()
    except Exception as error:  # noqa: BLE001 - the text is what the user would see
        print(error)
    address = spark.sparkContext.uiWebUrl
    application = spark.sparkContext.applicationId
    pages = ["jobs/", "stages/", "storage/", "environment/", "executors/", "SQL/", "StreamingQuery/"]
    pages += [f"SQL/execution/?id={number}" for number in range(4)]
    pages += [
        f"api/v1/applications/{application}/{name}" for name in ("environment", "sql?details=true", "jobs")
    ]
    for page in pages:
        with urlopen(f"{address}/{page}") as answer:
            print(page, answer.status, answer.read().decode())
    spark.stop()
    print("THE END")


if __name__ == "__main__":
    main(*sys.argv[1:])
