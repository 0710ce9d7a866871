"""Writes with `df.write|writeStream.format("odradek")` in a real Spark, against our node and Apache Kafka."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from pyspark.errors import StreamingQueryException

from odradek.client.producer.partitioner import partition_for_key
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
    """Append rows to a topic."""
    writer = frame.write.format(format).option("kafka.bootstrap.servers", bootstrap).mode("append")
    writer.options(**options).save()


def read(
    spark: SparkSession, bootstrap: str, topic: str, *columns: str, format: str = "odradek"
) -> list[tuple[Any, ...]]:
    """Return these columns of a topic's records, by partition and offset."""
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
    """Rows written by our sink and by the JVM connector are the same records in the same partitions, read with
    either."""
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


def test_a_failed_task_fails_the_write(
    spark: SparkSession, topics: Topics, fresh_topic: Callable[[str], str]
) -> None:
    """If a row cannot be written, the task fails the write with one sentence."""
    topic = topics.create(fresh_topic("sink"), partitions=2)
    rows = spark.range(0, 10, 1, 1).selectExpr("cast(id as string) as value", "cast(7 as int) as partition")
    with pytest.raises(Exception, match=r".") as caught:
        write(rows, topics.bootstrap, topic=topic)
    sentence = f"the column 'partition' has 7, but the topic '{topic}' has only the partitions 0 to 1."
    assert sentence in str(caught.value)


def test_mistakes_reach_the_user_from_the_driver(
    spark: SparkSession, topics: Topics, fresh_topic: Callable[[str], str]
) -> None:
    """Wrong options fail at `save` and `start`, before any task. An unknown topic that cannot be created does, too."""
    with pytest.raises(Exception, match=r"the topic 'a/b' cannot be written to at"):
        write(spark.sql("select 'x' as value"), topics.bootstrap, topic="a/b")


def crash_once(marker: Path, rows: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Make a query stage that kills its Python worker once, after a number of rows."""
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
    """If a worker is killed in the middle of a batch, a retry writes the missing rows. Each row is there at least
    once."""
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

    try:
        assert start().awaitTermination(300)
    except StreamingQueryException:
        # This session gives tasks only one attempt, so the query must be restarted.
        assert start().awaitTermination(300)
    assert (tmp_path / "crashed").exists()
    values = Counter(int(value) for (value,) in read(spark, topics.bootstrap, target, "value"))
    assert set(values) == set(range(3000))
    sums = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert sum(each["rows"] for each in sums if not each.get("aborted")) == 3000
