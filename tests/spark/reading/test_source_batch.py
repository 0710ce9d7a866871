"""Batch queries with `spark.read.format("odradek")`, in a real Spark against a real node."""

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
    from pyspark.sql.types import StructType


@pytest.fixture
def topics(node: RunningNode) -> Topics:
    return Topics(node.bootstrap)


@pytest.fixture
def read(spark: SparkSession, node: RunningNode) -> Callable[..., DataFrame]:
    """A function that makes a batch query of topics, with options."""

    def load(*names: str, **options: Any) -> DataFrame:
        reader = spark.read.format("odradek").option("kafka.bootstrap.servers", node.bootstrap)
        return reader.option("subscribe", ",".join(names)).options(**options).load()

    return load


class TestRows:
    def test_columns_are_those_of_the_jvm_connector(
        self, topics: Topics, read: Callable[..., DataFrame], fresh_topic: Callable[[str], str]
    ) -> None:
        """The format is found by name, and the columns are those of the JVM connector, with nulls and headers."""
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
        """The source can be registered with `spark.dataSource.register`, for a job that ships it."""
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
        """With `spark.sql.python.filterPushdown.enabled` the source applies the filters, and Spark does not. The rows
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
        """A wrong option fails at `load` with one sentence that names it, without a traceback."""
        with pytest.raises(
            AnalysisException, match="failOnDataLoss must be true or false, not 'perhaps'"
        ) as bad:
            read("t", failOnDataLoss="perhaps")
        assert "Traceback" not in str(bad.value)
        with pytest.raises(AnalysisException, match="cannot be read: it does not exist") as missing:
            read(fresh_topic("nothing")).collect()
        assert "Traceback" not in str(missing.value)

    def test_a_bug_keeps_its_traceback(self, spark: SparkSession) -> None:
        """A bug keeps its traceback. Only errors that explain themselves come without one."""
        spark.dataSource.register(broken_source())
        with pytest.raises(AnalysisException, match=r"(?s)Traceback.*a bug"):
            spark.read.format("odradek_with_a_bug").load()

    def test_sql(self, spark: SparkSession, topics: Topics, fresh_topic: Callable[[str], str]) -> None:
        """SQL uses a temporary view. CREATE TABLE would lose the options, so it is refused with advice."""
        name = topics.create(fresh_topic("sql"))
        topics.send(name, [b"1", b"2"])
        options = f"OPTIONS (`kafka.bootstrap.servers` '{topics.bootstrap}', subscribe '{name}', includeHeaders true)"
        spark.sql(f"CREATE TEMPORARY VIEW viewed USING odradek {options}")
        try:
            found = spark.sql("SELECT cast(value AS string) AS text, headers FROM viewed ORDER BY offset")
            assert [tuple(row) for row in found.collect()] == [("1", None), ("2", None)]
        finally:
            spark.catalog.dropTempView("viewed")
        with pytest.raises(AnalysisException, match=r"CREATE TABLE keeps no OPTIONS .*CREATE TEMPORARY VIEW"):
            spark.sql(f"CREATE TABLE lost USING odradek {options}")

    def test_a_table_that_loses_its_options_says_so(self, spark: SparkSession) -> None:
        """Without any option, the error names the likely reason: a table that lost its options."""
        with pytest.raises(
            AnalysisException, match=r"kafka\.bootstrap\.servers is missing.*CREATE TEMPORARY VIEW"
        ):
            spark.read.format("odradek").load()


def broken_source() -> type[DefaultSource]:
    """Make the format `odradek_with_a_bug`, whose schema raises KeyError."""

    # Spark pickles a class within a function by value, so its processes do not need this module.
    class BrokenSource(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "odradek_with_a_bug"

        def schema(self) -> StructType:
            from odradek.spark.plain_errors import plain_errors

            with plain_errors():
                raise KeyError("a bug")

    return BrokenSource
