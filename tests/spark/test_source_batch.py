"""Batch queries: `spark.read.format("odradek")` against a real node, in a real Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.node_process import RunningNode
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from pyspark.errors import AnalysisException

from pyspark_odradek import DefaultSource
from tests.spark.conftest import PUSHDOWN

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

    def test_registered_by_hand(
        self,
        spark: SparkSession,
        topics: Topics,
        read: Callable[..., DataFrame],
        fresh_topic: Callable[[str], str],
    ) -> None:
        """`spark.dataSource.register` works too, for who ships the source with the job."""
        spark.dataSource.register(DefaultSource)
        name = topics.create(fresh_topic("registered"))
        topics.send(name, [b"1", b"2"])
        assert [row.value for row in read(name).orderBy("offset").collect()] == [b"1", b"2"]

    def test_filters_are_pushed_where_the_session_allows(
        self,
        topics: Topics,
        read: Callable[..., DataFrame],
        setting: Callable[[str, str], None],
        fresh_topic: Callable[[str], str],
    ) -> None:
        """With `spark.sql.python.filterPushdown.enabled` the source filters the rows itself, instead of Spark; the rows
        are the same."""
        name = topics.create(fresh_topic("filtered"), partitions=2)
        topics.send(name, [b"%d" % number for number in range(9)], partition=1)
        topics.send(name, [b"other"])
        for enabled in ("true", "false"):
            setting(PUSHDOWN, enabled)
            frame = read(name).where("partition = 1 and offset >= 7").select("value")
            assert sorted(row.value for row in frame.collect()) == [b"7", b"8"]
            plan = frame._jdf.queryExecution().optimizedPlan().toString()
            assert ("Filter" in plan) == (enabled == "false"), plan

    def test_a_mistake_shows_at_load(
        self, read: Callable[..., DataFrame], fresh_topic: Callable[[str], str]
    ) -> None:
        """One sentence, with the option's name, before anything is read."""
        with pytest.raises(AnalysisException, match="failOnDataLoss must be true or false, not 'perhaps'"):
            read("t", failOnDataLoss="perhaps")
        with pytest.raises(AnalysisException, match="cannot be read: it does not exist"):
            read(fresh_topic("nothing")).collect()

    def test_a_table_that_loses_its_options_says_so(self, spark: SparkSession) -> None:
        """`CREATE TABLE ... OPTIONS` hands no options to a Python source: the error names the way around."""
        with pytest.raises(
            AnalysisException, match=r"kafka\.bootstrap\.servers is missing.*(CREATE TABLE|$)"
        ):
            spark.read.format("odradek").load()
