"""Count words with Spark: a stream from one topic to another, each record exactly once.

    pip install '.[spark]'
    python examples/spark_stream.py

The checkpoint stores the stream's position: after a kill at any moment, the stream continues from the stored
position. The program needs Java 17 or newer. It prints:

    +----+-----+
    |word|count|
    +----+-----+
    |be  |2    |
    |not |1    |
    |or  |1    |
    |to  |2    |
    +----+-----+
"""

import os
import tempfile

from pyspark.sql import SparkSession

from odradek import Producer

SERVER = os.environ.get("ODRADEK_BOOTSTRAP", "127.0.0.1:9092")

with Producer(bootstrap_servers=SERVER) as producer:
    for line in (b"to be", b"or not", b"to be"):
        producer.send("lines", line)

spark = SparkSession.builder.master("local[2]").getOrCreate()
lines = (
    spark.readStream.format("odradek")
    .option("kafka.bootstrap.servers", SERVER)
    .option("subscribe", "lines")
    .option("startingOffsets", "earliest")
    .load()
)
words = lines.selectExpr("explode(split(cast(value as string), ' ')) as value")

with tempfile.TemporaryDirectory() as checkpoint:  # a real job keeps its checkpoint
    query = (
        words.writeStream.format("odradek")
        .option("kafka.bootstrap.servers", SERVER)
        .option("topic", "words")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)  # without this, the stream runs for ever
        .start()
    )
    query.awaitTermination()

(
    spark.read.format("odradek")
    .option("kafka.bootstrap.servers", SERVER)
    .option("subscribe", "words")
    .option("kafka.isolation.level", "read_committed")  # skips rows of batches that Spark has not completed
    .load()
    .selectExpr("cast(value as string) as word")
    .groupBy("word")
    .count()
    .orderBy("word")
    .show(truncate=False)
)
