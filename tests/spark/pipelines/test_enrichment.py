"""The job `enrichment` on real flights and their weather, in one Spark against our node."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pandas
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from odradek.spark.pipelines import enrichment
from odradek.spark.pipelines.enrichment import Enrichment
from odradek.spark.pipelines.flight_table import (
    airline_table,
    airport_table,
    flight_table,
    plane_table,
    weather_table,
)
from odradek.spark.pipelines.flights import flights_frame
from odradek.spark.pipelines.job import Topics as Cluster
from odradek.spark.pipelines.progress import ProgressLine
from odradek.spark.pipelines.streams import run_query
from odradek.spark.pipelines.weather import weather_frame
from tests.node_process import RunningNode
from tests.spark.pipelines.killed_job import kill_job
from tests.spark.streaming import kill_workers, wait_for
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = 3000
LAST_HOUR = "2013-01-04T15"
"""The hour of the last of these flights."""
SLOW_HOUR = "2013-01-02T12"
"""The first hour of weather that comes after all flights."""
WITHOUT_WEATHER = 39
"""Flights of these whose hour the weather lacks: those of one hour of New Year's Day."""
FIELDS = ("carrier", "flight", "origin", "time_hour", "airline", "dest_name", "manufacturer", "seats", "temp")


@pytest.fixture
def cluster(spark: SparkSession, node: RunningNode) -> Cluster:
    return Cluster(spark, "odradek", {"kafka.bootstrap.servers": node.bootstrap})


@pytest.fixture
def written(cluster: Cluster, node: RunningNode, fresh_topic: Callable[[str], str]) -> Enrichment:
    """The job on a topic of flights of three partitions, and an empty one of weather."""
    topics = Topics(node.bootstrap)
    flights = topics.create(fresh_topic("flights"), partitions=3)
    weather = topics.create(fresh_topic("weather"))
    cluster.write(flights_frame(cluster.spark, FLIGHTS), flights)
    target = topics.create(fresh_topic("enriched"), partitions=2)
    return Enrichment(cluster, flights, weather, target, "3 hours")


def expected_rows() -> Counter[tuple[str, ...]]:
    """Return the enriched flights as computed by pandas, as rows of `FIELDS`."""
    flights = flight_table().sort_values("time_hour", kind="stable").head(FLIGHTS)
    airports = airport_table().rename(columns={"faa": "dest", "name": "dest_name"})[["dest", "dest_name"]]
    rows = (
        flights.merge(airline_table().rename(columns={"name": "airline"}), on="carrier", how="left")
        .merge(airports, on="dest", how="left")
        .merge(plane_table()[["tailnum", "manufacturer", "seats"]], on="tailnum", how="left")
        .merge(weather_table()[["origin", "time_hour", "temp"]], on=["origin", "time_hour"], how="left")
    )
    return rows_of(rows)


def enriched_rows(job: Enrichment) -> Counter[tuple[str, ...]]:
    """Return the records of the job's target as rows of `FIELDS`."""
    values = job.topics.read(job.target).selectExpr("cast(value as string)").collect()
    return rows_of(pandas.DataFrame([json.loads(row["value"]) for row in values]))


def rows_of(table: pandas.DataFrame) -> Counter[tuple[str, ...]]:
    """Count rows as tuples of texts, with "" for a null."""
    texts = table.assign(time_hour=pandas.to_datetime(table["time_hour"]))[list(FIELDS)].astype(object)
    return Counter(
        tuple("" if pandas.isna(each) else str(each) for each in row) for row in texts.itertuples(index=False)
    )


def test_flights_have_what_pandas_joins(written: Enrichment, checkpoint: str, spark: SparkSession) -> None:
    """The joins give the rows that pandas gives, each once, though Spark's Python workers are killed on the way.
    Flights wait for weather that comes later, and those whose hour the weather lacks come without it."""
    out = io.StringIO()
    line = ProgressLine("test", out)
    hour = spark_hour("value")
    weather = weather_frame(spark, LAST_HOUR)
    written.topics.write(weather.where(f"{hour} < '{SLOW_HOUR}'"), written.weather)
    query = written.start(checkpoint, 1500)
    wait_for(lambda: (Path(checkpoint) / "offsets" / "1").exists(), query)
    wait_for(lambda: kill_workers(spark) > 0, query)
    read = run_query(line, query)
    expected = expected_rows()
    early = enriched_rows(written)
    assert early < expected
    assert early.total() > sum(count for row, count in expected.items() if row[3] < SLOW_HOUR) / 2
    written.topics.write(weather.where(f"{hour} >= '{SLOW_HOUR}'"), written.weather)
    read += run_query(line, written.start(checkpoint, 1500))
    assert read == FLIGHTS + weather.count()
    assert enriched_rows(written) == expected
    assert sum(count for row, count in expected.items() if row[-1] == "") == WITHOUT_WEATHER
    assert "too late" not in out.getvalue()


def test_a_job_that_is_killed_in_the_middle(
    written: Enrichment, checkpoint: str, node: RunningNode, tmp_path: Path, whole_matrix: bool
) -> None:
    """A job whose processes are killed in the second batch, and started again, gives the rows that pandas gives. The
    flights of the hour without weather are read after that, and come all the same."""
    if not whole_matrix:
        pytest.skip("starts another Spark, so it runs only in make test-spark")
    written.topics.write(weather_frame(written.topics.spark, LAST_HOUR), written.weather)
    names = ["--topic", written.flights, "--weather", written.weather, "--to", written.target]
    words = ["--bootstrap", node.bootstrap, *names, "--watermark", "3 hours", "--checkpoint", checkpoint]
    kill_job(["enrichment", *words, "--records-per-batch", "300"], Path(checkpoint), 1, tmp_path)
    assert enrichment.main(words) == 0
    assert enriched_rows(written) == expected_rows()


def spark_hour(value: str) -> str:
    """Make the SQL of the hour of a JSON value, as 2013-01-01T10:00:00Z."""
    return f"get_json_object({value}, '$.time_hour')"
