"""Writes: `df.write|writeStream.format("odradek")` in a real Spark, against our node and Apache Kafka."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from odradek.client.partitioner import partition_for_key
from tests.kafka_jars import apache_kafka, kafka_jars  # noqa: F401 - fixtures by name
from tests.node_process import RunningNode
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS = """
    SELECT * FROM VALUES
      ('k1', X'00ff', 'one', array(named_struct('key', 'trace', 'value', X'01'), named_struct('key', 'none', 'value', NULL))),
      ('k2', NULL, NULL, NULL),
      (NULL, X'', '', array()),
      ('', X'aa', 'é', NULL)
    AS rows(key, bytes, text, headers)
"""
HEADERS = [{"key": "trace", "value": b"\x01"}, {"key": "none", "value": None}]


@pytest.fixture
def topics(node: RunningNode) -> Topics:
    return Topics(node.bootstrap)


def write(frame: DataFrame, bootstrap: str, format: str = "odradek", **options: Any) -> None:
    """Append to a topic."""
    writer = frame.write.format(format).option("kafka.bootstrap.servers", bootstrap).mode("append")
    writer.options(**options).save()


def read(
    spark: SparkSession, bootstrap: str, topic: str, *columns: str, format: str = "odradek"
) -> list[tuple[Any, ...]]:
    """These columns of a topic's records, by partition and offset."""
    reader = spark.read.format(format).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    rows = (
        reader.option("includeHeaders", "true")
        .load()
        .orderBy("partition", "offset")
        .select(*columns)
        .collect()
    )
    return [tuple(row.asDict(recursive=True).values()) for row in rows]


@pytest.mark.parametrize(
    ("server", "value"), [("node", "bytes"), pytest.param("apache_kafka", "text", marks=pytest.mark.java)]
)
def test_records_are_those_of_the_jvm_connector(
    spark: SparkSession,
    request: pytest.FixtureRequest,
    fresh_topic: Callable[[str], str],
    server: str,
    value: str,
    jvm_connector: None,
) -> None:
    """The same rows, written by either connector and read by either, are the same records in the same partitions."""
    bootstrap = request.getfixturevalue(server).bootstrap
    topics = Topics(bootstrap)
    rows = (
        spark.sql(ROWS).coalesce(1).where("key is not null").selectExpr("key", f"{value} as value", "headers")
    )
    found: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    for writer in ("odradek", "kafka"):
        topic = topics.create(fresh_topic("sink"), partitions=3)
        write(rows, bootstrap, writer, topic=topic)
        for reader in ("odradek", "kafka"):
            found[writer, reader] = read(
                spark, bootstrap, topic, "partition", "key", "value", "headers", format=reader
            )
    expected = found["kafka", "kafka"]
    assert len(expected) == 3
    assert found == dict.fromkeys(found, expected)
    for partition, key, _, headers in expected:
        assert partition == partition_for_key(key, 3)
        assert headers == (HEADERS if key == b"k1" else None)


def test_partitions_and_topics_by_column(
    spark: SparkSession, topics: Topics, fresh_topic: Callable[[str], str]
) -> None:
    """`topic` and `partition` of each row; a null partition leaves it to the key; the option goes before the column."""
    first, second = (topics.create(fresh_topic("sink"), partitions=4) for _ in range(2))
    rows = spark.range(400).selectExpr(
        f"if(id % 2 = 0, '{first}', '{second}') as topic",
        "cast(id as string) as key",
        "cast(if(id % 4 < 2, id % 3, null) as int) as partition",
        "cast(cast(id as string) as binary) as value",
    )
    write(rows, topics.bootstrap)
    for odd, topic in enumerate((first, second)):
        records = read(spark, topics.bootstrap, topic, "key", "partition")
        assert sorted(int(key) for key, _ in records) == list(range(odd, 400, 2))
        for key, partition in records:
            number = int(key)
            assert partition == (number % 3 if number % 4 < 2 else partition_for_key(key, 4))
    write(rows.limit(10), topics.bootstrap, topic=second)
    assert len(read(spark, topics.bootstrap, first, "key")) == 200


def test_many_rows_without_keys_are_spread_and_counted(
    spark: SparkSession, topics: Topics, fresh_topic: Callable[[str], str], tmp_path: Path
) -> None:
    """Every row once, over all partitions; the file of `metricsPath` has the sums of the tasks."""
    topic = topics.create(fresh_topic("sink"), partitions=3)
    metrics = tmp_path / "metrics"
    rows = spark.range(60_000).selectExpr("lpad(cast(id as string), 100, '-') as value")
    options = {"kafka.batch.size": "100000", "kafka.compression.type": "lz4", "metricsPath": str(metrics)}
    write(rows, topics.bootstrap, topic=topic, **options)
    records = read(spark, topics.bootstrap, topic, "partition", "value")
    assert Counter(int(value.strip(b"-")) for _, value in records) == Counter(range(60_000))
    assert min(Counter(partition for partition, _ in records).values()) > 10_000
    sums = json.loads(metrics.read_text())
    assert (sums["rows"], sums["record_bytes"], sums["tasks"]) == (60_000, 6_000_000, 2)
    assert 0 < sums["batch_bytes"] < 6_000_000
    assert sums["batches"] >= 60


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (
            "cast(7 as int) as partition",
            "the column 'partition' has 7, and the topic '{topic}' has the partitions 0 to 1.",
        ),
        ("if(id = 5, null, '{topic}') as topic", "the column 'topic' is null in 1 of 10 rows"),
        ("'no such topic!' as topic", "the topic 'no such topic!' cannot be written to at"),
        (
            "array(named_struct('key', cast(null as string), 'value', X'00')) as headers",
            "the column 'headers' has a header without a key",
        ),
        ("repeat('x', 2000000) as more", "above max.request.size"),
    ],
)
def test_a_failed_task_fails_the_write(
    spark: SparkSession, topics: Topics, fresh_topic: Callable[[str], str], columns: str, sentence: str
) -> None:
    """What only the rows show is told in one sentence by the task, before any of its rows is sent."""
    topic = topics.create(fresh_topic("sink"), partitions=2)
    rows = spark.range(0, 10, 1, 1).selectExpr("id", columns.format(topic=topic))
    value = "more" if "more" in rows.columns else "cast(id as string)"
    others = [name for name in rows.columns if name not in ("id", "more")]
    options = {} if "topic" in others else {"topic": topic}
    with pytest.raises(Exception, match=r".") as caught:
        write(rows.selectExpr(f"{value} as value", *others), topics.bootstrap, **options)
    assert sentence.format(topic=topic) in str(caught.value)
    assert read(spark, topics.bootstrap, topic, "value") == []


def test_mistakes_reach_the_user_from_the_driver(
    spark: SparkSession, topics: Topics, fresh_topic: Callable[[str], str]
) -> None:
    """`save` and `start` raise before any task, with the sentence; an unknown topic that nobody may make is one of them."""
    with pytest.raises(Exception, match=r"the topic 'a/b' cannot be written to at"):
        write(spark.sql("select 'x' as value"), topics.bootstrap, topic="a/b")
    with pytest.raises(Exception, match=r"a topic cannot be overwritten"):
        spark.sql("select 'x' as value").write.format("odradek").option(
            "kafka.bootstrap.servers", topics.bootstrap
        ).option("topic", "t").mode("overwrite").save()


def crash_once(marker: Path, rows: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A stage of a query that ends its Python worker by kill -9, once, behind so many rows."""
    path = str(marker)

    def stage(batches: Iterator[Any]) -> Iterator[Any]:
        seen = 0
        for batch in batches:
            seen += batch.num_rows
            yield batch
            if seen >= rows and not os.path.exists(path):
                open(path, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)

    return stage


def test_a_worker_killed_in_the_middle_of_a_batch_loses_nothing(
    spark: SparkSession,
    topics: Topics,
    fresh_topic: Callable[[str], str],
    streams: Callable[[StreamingQuery], StreamingQuery],
    setting: Callable[[str, str], None],
    checkpoint: str,
    tmp_path: Path,
) -> None:
    """At least once: the query fails with its task, and started again it writes what is missing; rows may be there twice."""
    source = topics.create(fresh_topic("sink"), partitions=2)
    target = topics.create(fresh_topic("sink"), partitions=2)
    for partition in range(2):
        topics.send(source, [b"%d" % number for number in range(partition, 3000, 2)], partition=partition)
    setting("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    metrics = tmp_path / "metrics"
    options = {"kafka.bootstrap.servers": topics.bootstrap, "kafka.batch.size": "1000"}
    crash = crash_once(tmp_path / "crashed", 700)

    def start() -> StreamingQuery:
        records = spark.readStream.format("odradek").options(**options).option("subscribe", source)
        values = records.option("startingOffsets", "earliest").load().select("value")
        writer = values.mapInArrow(crash, "value binary").writeStream.format("odradek").options(**options)
        writer = writer.option("topic", target).option("metricsPath", str(metrics))
        return streams(writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start())

    with pytest.raises(Exception, match=r"."):
        start().awaitTermination(120)
    assert (tmp_path / "crashed").exists()
    assert start().awaitTermination(120)
    values = Counter(int(value) for (value,) in read(spark, topics.bootstrap, target, "value"))
    assert set(values) == set(range(3000))
    sums = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert sum(each["rows"] for each in sums if not each.get("aborted")) == 3000
    before = sum(values.values())
    assert start().awaitTermination(120)
    assert len(read(spark, topics.bootstrap, target, "value")) == before
