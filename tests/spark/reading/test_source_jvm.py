"""Spark's own Kafka connector and ours give the same rows for the same queries, and the same ends of batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from testkit.processes import ServerProcess
from tests.node_process import RunningNode
from tests.spark.streaming import started
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ("kafka", "odradek")
pytestmark = [pytest.mark.java, pytest.mark.usefixtures("jvm_connector")]


def rows(spark: SparkSession, which: str, bootstrap: str, **options: Any) -> list[tuple[Any, ...]]:
    """Return all columns of a batch query, in the order of the log."""
    reader = spark.read.format(which).option("kafka.bootstrap.servers", bootstrap)
    frame = reader.option("includeHeaders", "true").options(**options).load()
    found = [tuple(row) for row in frame.collect()]
    return sorted(found, key=lambda row: (row[2], row[3], row[4]))


def fill(topics: Topics, name: str) -> None:
    """Fill two partitions with all codecs, nulls, headers and decreasing timestamps."""
    topics.create(name, partitions=2)
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        values = [None, b"", *(b"%d-%d" % (number, each) for each in range(20))]
        topics.send(
            name,
            values,
            partition=number % 2,
            key=None if number == 2 else b"key-%d" % number,
            timestamp=1_700_000_000_000 - number * 1000,
            headers=[("codec", codec.encode()), ("null", None)] if number % 2 else [],
            compression_type=codec,
            linger_ms=20,
        )


class TestOnOdradek:
    def test_batch_queries(
        self, spark: SparkSession, node: RunningNode, fresh_topic: Callable[[str], str]
    ) -> None:
        """Batch queries give the same rows when only the format's name is changed."""
        name = fresh_topic("both")
        fill(Topics(node.bootstrap), name)
        starts, ends = {"0": 5, "1": -2}, {"0": -1, "1": 7}
        queries: list[dict[str, Any]] = [
            {"subscribe": name},
            {"subscribePattern": f"{name[:-1]}.", "minPartitions": 5},
            {"assign": json.dumps({name: [1]}), "maxRecordsPerPartition": 10},
            {
                "subscribe": name,
                "startingOffsets": json.dumps({name: starts}),
                "endingOffsets": json.dumps({name: ends}),
            },
            {"subscribe": name, "startingTimestamp": 1_699_999_999_000, "endingTimestamp": 1_699_999_999_500},
        ]
        for options in queries:
            theirs, ours = (rows(spark, which, node.bootstrap, **options) for which in FORMATS)
            assert ours == theirs, options
            assert theirs or "endingTimestamp" in options

    def test_batches_of_a_stream(
        self,
        spark: SparkSession,
        node: RunningNode,
        fresh_topic: Callable[[str], str],
        tmp_path: Any,
    ) -> None:
        """maxOffsetsPerTrigger ends the batches of a backlog at the same offsets."""
        name = fresh_topic("cut")
        fill(Topics(node.bootstrap), name)
        ends: dict[str, list[Any]] = {}
        for which in FORMATS:
            reader = spark.readStream.format(which).option("kafka.bootstrap.servers", node.bootstrap)
            options = {"subscribe": name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "60"}
            writer = reader.options(**options).load().writeStream.format("noop")
            writer = writer.option("checkpointLocation", str(tmp_path / which)).trigger(availableNow=True)
            query = started(writer.start)
            assert query.awaitTermination(120)
            assert query.exception() is None
            ends[which] = [
                _offset(each.sources[0].endOffset)[name] for each in query.recentProgress if each.numInputRows
            ]
        assert ends["odradek"] == ends["kafka"]
        assert ends["kafka"][-1] == {"0": 66, "1": 44}
        assert len(ends["kafka"]) > 1

    def test_there_and_back_again(
        self,
        spark: SparkSession,
        node: RunningNode,
        fresh_topic: Callable[[str], str],
        tmp_path: Any,
    ) -> None:
        """A checkpoint of the JVM connector can be continued by ours and, with jvmOffsets, back. Each record is read
        once."""
        topics, name = Topics(node.bootstrap), fresh_topic("back")
        topics.create(name, partitions=2)
        found: list[bytes] = []

        def run(which: str, **options: str) -> None:
            reader = spark.readStream.format(which).option("kafka.bootstrap.servers", node.bootstrap)
            frame = reader.options(subscribe=name, startingOffsets="earliest", **options).load()
            writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            writer = writer.foreachBatch(lambda rows, _: found.extend(row.value for row in rows.collect()))
            query = started(writer.trigger(availableNow=True).start)
            assert query.awaitTermination(120)
            assert query.exception() is None, which

        written: list[bytes] = []
        for which, options in (
            ("kafka", {}),
            ("odradek", {}),
            ("odradek", {"jvmOffsets": "true"}),
            ("kafka", {}),
        ):
            values = [b"%d" % (len(written) + each) for each in range(4)]
            topics.send(name, values[:2])
            topics.send(name, values[2:], partition=1)
            written += values
            run(which, **options)
            assert sorted(found, key=int) == written, which


def _offset(text: Any) -> dict[str, Any]:
    found = json.loads(text) if isinstance(text, str) else text
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def transactions(apache_kafka: ServerProcess) -> Iterator[tuple[str, str]]:
    """Apache Kafka's address, and a topic with committed, aborted and open transactions."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    name = "transactions"
    admin = AdminClient({"bootstrap.servers": apache_kafka.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(60)
    producers = []
    for number in range(3):
        producer = Producer(
            {"bootstrap.servers": apache_kafka.bootstrap, "transactional.id": f"t{number}", "linger.ms": 0}
        )
        producer.init_transactions(60)
        producers.append(producer)

    def write(number: int, *values: str) -> None:
        for value in values:
            producers[number].produce(name, value.encode(), partition=0)
        producers[number].flush(60)

    # The second producer's aborted transaction lies within the first one's committed transaction.
    producers[0].begin_transaction()
    write(0, "committed 1")
    producers[1].begin_transaction()
    write(1, "aborted 1", "aborted 2")
    write(0, "committed 2")
    producers[1].abort_transaction(60)
    producers[1].begin_transaction()
    write(1, "committed 3")
    producers[0].commit_transaction(60)
    write(1, "committed 4")
    producers[1].commit_transaction(60)
    producers[0].begin_transaction()
    write(0, *(f"aborted {number}" for number in range(3, 40)))
    producers[0].abort_transaction(60)
    producers[2].begin_transaction()
    write(2, "open")
    yield apache_kafka.bootstrap, name
    producers[2].abort_transaction(60)


class TestOnApacheKafka:
    def test_transactions(self, spark: SparkSession, transactions: tuple[str, str]) -> None:
        """With read_committed, records of aborted and open transactions are left out (KIP-98). With read_uncommitted,
        all are returned."""
        bootstrap, name = transactions
        for level in ("read_committed", "read_uncommitted"):
            given = {"subscribe": name, "kafka.isolation.level": level}
            theirs, ours = (rows(spark, which, bootstrap, **given) for which in FORMATS)
            assert ours == theirs
            values = [row[1] for row in ours]
            if level == "read_committed":
                assert values == [b"committed 1", b"committed 2", b"committed 3", b"committed 4"]
            else:
                assert len(values) == 44
                assert values[-1] == b"open"
        # Parts may begin and end within transactions.
        parted = rows(
            spark,
            "odradek",
            bootstrap,
            subscribe=name,
            minPartitions="12",
            **{"kafka.isolation.level": "read_committed"},
        )
        assert [row[1] for row in parted] == [b"committed 1", b"committed 2", b"committed 3", b"committed 4"]

    def test_batch_queries(self, spark: SparkSession, apache_kafka: ServerProcess) -> None:
        """Against Apache Kafka, both connectors return the same rows."""
        fill(Topics(apache_kafka.bootstrap), "both")
        theirs, ours = (rows(spark, which, apache_kafka.bootstrap, subscribe="both") for which in FORMATS)
        assert ours == theirs
        assert len(ours) == 110
