"""One Spark session for this folder: local, with two cores, started when the first test asks for it.

`tests/conftest.py` gives the folder to one worker of xdist, so there is only one Java process and one start of Spark.
Tests that change a setting of the session restore it (`setting`) and stop the streaming queries that they start
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
    """A session in this process, in which a task may fail twice.

    It has the JVM connector if its jars are available. Without pyspark or Java, the tests are skipped.
    """
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
    """Return the paths of the JVM connector's jars. Raises `KafkaUnavailable` if PySpark has another version."""
    import pyspark

    if pyspark.__version__ != SPARK_VERSION:
        raise KafkaUnavailable(
            f"its jars are for Spark {SPARK_VERSION}, and PySpark is {pyspark.__version__}"
        )
    return spark_jars()


@pytest.fixture(scope="session")
def jvm_connector() -> None:
    """Skip tests if the jars of Spark's own Kafka connector are unavailable. Otherwise the session has them."""
    try:
        jars_for_this_spark()
    except KafkaUnavailable as reason:
        pytest.skip(f"Spark's own Kafka connector is unavailable: {reason}")


@pytest.fixture
def setting(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    """A function that changes a setting of the session until the test ends."""
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
    """A function that returns the given query and stops it when the test ends."""
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
