"""The job `sessions` on real flights, in one Spark against our node."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pandas
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")
pytest.importorskip("google.protobuf", reason="protobuf is not installed (the extra spark)")

from odradek.spark.pipelines import sessions
from odradek.spark.pipelines.flight_table import flight_table
from odradek.spark.pipelines.flights import flights_frame
from odradek.spark.pipelines.job import Failed
from odradek.spark.pipelines.job import Topics as Cluster
from odradek.spark.pipelines.progress import ProgressLine
from odradek.spark.pipelines.sessions import Following
from odradek.spark.pipelines.streams import run_query
from tests.node_process import RunningNode
from tests.spark.pipelines.killed_job import kill_job
from tests.spark.streaming import kill_workers, wait_for
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = 3000
Records = dict[str, list[dict[str, object] | None]]
"""The values of a topic by key, in their order; None for a tombstone."""


@pytest.fixture
def job(spark: SparkSession, node: RunningNode, fresh_topic: Callable[[str], str]) -> Following:
    """The job on a topic of flights with three partitions, and two compacted topics."""
    topics = Topics(node.bootstrap)
    source = topics.create(fresh_topic("flights"), partitions=3)
    targets = [
        topics.create(fresh_topic(name), partitions=2, cleanup_policy="compact")
        for name in ("sessions", "alerts")
    ]
    cluster = Cluster(spark, "odradek", {"kafka.bootstrap.servers": node.bootstrap})
    cluster.write(flights_frame(spark, FLIGHTS), source)
    return Following(cluster, source, *targets, watermark="3 hours")


def values_of(job: Following, topic: str) -> Records:
    """Return the values of a topic by key, in their order."""
    rows = (
        job.topics.read(topic).selectExpr("cast(key as string)", "cast(value as string)", "offset").collect()
    )
    found: Records = {}
    for row in sorted(rows, key=lambda row: row["offset"]):
        found.setdefault(row["key"], []).append(row["value"] and json.loads(row["value"]))
    return found


def expected_records() -> tuple[Records, Records, pandas.Timestamp]:
    """Return all sessions and alerts as computed by pandas, and the last hour of a flight. Sessions that still go on have
    been ended."""
    flights = flight_table().sort_values("time_hour", kind="stable").head(FLIGHTS)
    flown = flights.dropna(subset=["tailnum", "dep_delay"]).assign(
        time=lambda rows: pandas.to_datetime(rows["time_hour"])
    )
    gap = flown.groupby("tailnum")["time"].diff() > pandas.Timedelta(hours=12)
    flown["session"] = gap.groupby(flown["tailnum"]).cumsum()
    ended: Records = {}
    alerts: Records = {}
    for (tail, _), rows in flown.groupby(["tailnum", "session"]):
        times = rows["time"].dt.strftime("%Y-%m-%dT%H:%M:%SZ").tolist()
        mean = round(rows["dep_delay"].sum() / len(rows), 3)
        summary = {
            "tailnum": tail,
            "start": times[0],
            "end": times[-1],
            "flights": len(rows),
            "mean_dep_delay": mean,
        }
        ended.setdefault(tail, []).append(summary)
        late = 0
        for time, delay in zip([*times, ""], [*rows["dep_delay"], 0], strict=True):
            before, late = late, late + 1 if delay >= 60 else 0
            if late >= 2:
                alerts.setdefault(tail, []).append({"tailnum": tail, "late_in_a_row": late, "at": time})
            elif before >= 2:
                alerts[tail].append(None)
    return ended, alerts, flown["time"].max()


def check_topics(job: Following) -> None:
    """Check that both topics have the records that pandas computes. The last ones of sessions that may still go on at
    the watermark may be missing."""
    ended, alerts, last = expected_records()
    surely = (last - pandas.Timedelta(hours=16)).strftime("%Y-%m-%dT%H:%M:%SZ")
    open_tails = {tail for tail, rows in ended.items() if str((rows[-1] or {})["end"]) >= surely}
    found_sessions, found_alerts = values_of(job, job.sessions), values_of(job, job.alerts)
    assert len(open_tails) < len(ended) / 2
    for tail, rows in ended.items():
        found = found_sessions.get(tail, [])
        assert found == rows or (tail in open_tails and found == rows[:-1]), tail
    for tail, rows in alerts.items():
        found = found_alerts.get(tail, [])
        assert found == rows or (tail in open_tails and [*found, None] == rows), tail
    assert set(found_sessions) <= set(ended)
    assert set(found_alerts) == set(alerts)
    assert len(alerts) > 10


def test_sessions_and_alerts_are_those_of_pandas(
    spark: SparkSession, job: Following, checkpoint: str
) -> None:
    """Each aircraft has the sessions and alerts that pandas computes, each once and in order, though Spark's Python
    workers are killed on the way. Cleared alerts are tombstones."""
    query = job.start(checkpoint, 1000)
    wait_for(lambda: (Path(checkpoint) / "offsets" / "1").exists(), query)
    wait_for(lambda: kill_workers(spark) > 0, query)
    assert run_query(ProgressLine("test", io.StringIO()), query) == FLIGHTS
    assert "RocksDB" not in str(spark.conf.get("spark.sql.streaming.stateStore.providerClass"))
    check_topics(job)


def test_missing_protobuf_is_named_in_the_sentence(
    job: Following, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the package protobuf, the sentence says what to install."""
    monkeypatch.setattr(sessions, "find_spec", lambda name: None)
    with pytest.raises(Failed, match="needs the package protobuf: pip install"):
        job.start(checkpoint, 1000)


def test_a_job_that_is_killed_in_the_middle(
    job: Following, checkpoint: str, node: RunningNode, tmp_path: Path, whole_matrix: bool
) -> None:
    """A job whose processes are killed in the second batch, and started again, gives the records that pandas gives."""
    if not whole_matrix:
        pytest.skip("starts another Spark, so it runs only in make test-spark")
    names = ["--topic", job.source, "--to", job.sessions, "--alerts", job.alerts]
    words = ["--bootstrap", node.bootstrap, *names, "--watermark", "3 hours", "--checkpoint", checkpoint]
    kill_job(["sessions", *words, "--records-per-batch", "1000"], Path(checkpoint), 1, tmp_path)
    assert sessions.main(words) == 0
    check_topics(job)
