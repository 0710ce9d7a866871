"""One Spark for the whole folder: a local session with two cores, started when the first test asks for it.

`tests/conftest.py` gives the folder to one worker of xdist, so that there is one Java process and one start of Spark. Tests
that change a setting of the session set it back (`setting`), and end the streaming queries that they start
(`streams`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from odradek.spark.worker_process import worker_python
from testkit.kafka_server import SHORT_LIVED, KafkaUnavailable, java_command
from testkit.spark_jars import SPARK_VERSION, spark_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session in this process, where a task may fail twice; skipped aloud without pyspark or Java; with the JVM connector where its jars are."""
    sql = pytest.importorskip("pyspark.sql", reason="Spark is not installed (the extra spark)")
    try:
        java_command()
    except KafkaUnavailable as reason:
        pytest.skip(f"Spark is unavailable: {reason}")
    directory = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = worker_python()
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "768m",
        "spark.driver.extraJavaOptions": " ".join(SHORT_LIVED[1:]),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.log.level": "ERROR",
        PUSHDOWN: "true",
    }
    try:
        settings["spark.jars"] = jars_for_this_spark()
    except KafkaUnavailable as reason:
        sys.stderr.write(f"without Spark's own Kafka connector: {reason}\n")
    builder = sql.SparkSession.builder.master("local[2,3]").appName("tests")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    yield session
    session.stop()


def jars_for_this_spark() -> str:
    """Return the jars of the JVM connector; `KafkaUnavailable` where they are of another version than PySpark."""
    import pyspark

    if pyspark.__version__ != SPARK_VERSION:
        raise KafkaUnavailable(f"its jars are of {SPARK_VERSION}, and this is {pyspark.__version__}")
    return spark_jars()


@pytest.fixture(scope="session")
def jvm_connector() -> None:
    """Skips aloud where the jars of Spark's own Kafka connector cannot be had; the session has them otherwise."""
    try:
        jars_for_this_spark()
    except KafkaUnavailable as reason:
        pytest.skip(f"Spark's own Kafka connector is unavailable: {reason}")


@pytest.fixture
def setting(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    """Set a setting of the session until the test ends."""
    before: dict[str, str | None] = {}

    def put(key: str, value: str) -> None:
        before.setdefault(key, spark.conf.get(key, None))
        spark.conf.set(key, value)

    yield put
    for key, value in before.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


@pytest.fixture
def streams(spark: SparkSession) -> Iterator[Callable[[StreamingQuery], StreamingQuery]]:
    """Hands back the query it gets, and stops it when the test ends."""
    started: list[StreamingQuery] = []

    def note(query: StreamingQuery) -> StreamingQuery:
        started.append(query)
        return query

    yield note
    for query in started:
        query.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A directory for a streaming query's checkpoint."""
    return str(tmp_path / "checkpoint")
