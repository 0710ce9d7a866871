"""Batch queries: `spark.read.format("odradek")` against a real node, in a real Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.node_process import RunningNode
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def topics(node: RunningNode) -> Topics:
    return Topics(node.bootstrap)


@pytest.fixture
def read(spark: SparkSession, node: RunningNode) -> Callable[..., DataFrame]:
    """A batch query of topics, with options."""

    def load(*names: str, **options: Any) -> DataFrame:
        reader = spark.read.format("odradek").option("kafka.bootstrap.servers", node.bootstrap)
        return reader.option("subscribe", ",".join(names)).options(**options).load()

    return load


class TestRows:
    def test_columns_are_those_of_the_jvm_connector(
        self, topics: Topics, read: Callable[..., DataFrame], fresh_topic: Callable[[str], str]
    ) -> None:
        """Found by its name, without an import; a key, a header and a null come as they are."""
        name = topics.create(fresh_topic("rows"), partitions=2)
        topics.send(name, [b"one", None], key=b"k", timestamp=1_700_000_000_123, headers=[("h", b"v")])
        topics.send(name, [b"two"], partition=1, timestamp=1_700_000_000_000)
        frame = read(name, includeHeaders="true")
        assert frame.dtypes == [
            ("key", "binary"),
            ("value", "binary"),
            ("topic", "string"),
            ("partition", "int"),
            ("offset", "bigint"),
            ("timestamp", "timestamp"),
            ("timestampType", "int"),
            ("headers", "array<struct<key:string,value:binary>>"),
        ]
        rows = frame.selectExpr(
            "key",
            "value",
            "topic",
            "partition",
            "offset",
            "unix_millis(timestamp)",
            "timestampType",
            "headers",
        ).collect()
        assert sorted(map(tuple, rows), key=lambda row: (row[3], row[4])) == [
            (b"k", b"one", name, 0, 0, 1_700_000_000_123, 0, [("h", b"v")]),
            (b"k", None, name, 0, 1, 1_700_000_000_123, 0, [("h", b"v")]),
            (None, b"two", name, 1, 0, 1_700_000_000_000, 0, None),
        ]
