"""The job `operate` on real flights, in one Spark against our node: bad code, new code, roll-back, kills."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pandas
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from odradek.spark.pipelines.flight_table import flight_table
from odradek.spark.pipelines.flights import flights_frame
from odradek.spark.pipelines.job import Topics as Cluster
from odradek.spark.pipelines.operating import command
from odradek.spark.pipelines.operating.checkpoints import finished_offsets
from tests.node_process import RunningNode
from tests.spark.pipelines.killed_job import kill_job
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = 3000
BROKEN_RULE = "if(dep_delay < 100, false, raise_error('a slip'))"
"""A rule that fails at the first flight that is very late."""


class Bench:
    """A topic of flights, empty targets, and a folder of checkpoints."""

    def __init__(self, cluster: Cluster, fresh_topic: Callable[[str], str], folder: Path) -> None:
        self.cluster = cluster
        self.made = Topics(cluster.bootstrap)
        self.flights = self.made.create(fresh_topic("flights"), partitions=3)
        self.late, self.hours = (self.made.create(fresh_topic(name)) for name in ("late", "hours"))
        self.alerts = fresh_topic("operating")
        self.checkpoints = folder / "checkpoints"
        cluster.write(flights_frame(cluster.spark, FLIGHTS), self.flights)

    def words(self, *more: str) -> list[str]:
        topics = [
            "--topic",
            self.flights,
            "--late",
            self.late,
            "--hours",
            self.hours,
            "--alerts",
            self.alerts,
        ]
        where = ["--bootstrap", self.cluster.bootstrap, "--checkpoints", str(self.checkpoints)]
        return [*topics, *where, "--records-per-batch", "1500", "--watermark", "3 hours", *more]

    def run(self, *more: str) -> int:
        """Run the job in this process, until all queries have ended or are down."""
        return command.main(self.words("--failures", "1", *more))

    def values(self, topic: str) -> list[str | None]:
        rows = self.cluster.read(topic).selectExpr("cast(value as string)", "offset").collect()
        return [row["value"] for row in sorted(rows, key=lambda row: row["offset"])]

    def alert_states(self) -> list[tuple[str, str | None]]:
        """Return the alerts of all queries in their order: (query, state), None for a tombstone."""
        rows = self.cluster.read(self.alerts).selectExpr(
            "cast(key as string)", "cast(value as string)", "offset"
        )
        return [
            (row["key"], None if row["value"] is None else json.loads(row["value"])["state"])
            for row in sorted(rows.collect(), key=lambda row: row["offset"])
        ]

    def check_late(self, minutes: float = 60) -> None:
        """Check that each late flight is in the topic, once."""
        found = Counter(place(json.loads(each or "")) for each in self.values(self.late))
        flights = first_flights()
        wanted = flights[flights["dep_delay"] > minutes].to_dict(orient="records")
        assert found == Counter(map(place, wanted))

    def check_hours(self) -> None:
        """Check that the hours before the watermark are in the topic, each once, with the flights that pandas counts."""
        found = [json.loads(each or "") for each in self.values(self.hours)]
        counted = Counter({(each["origin"], each["start"]): each["flights"] for each in found})
        assert len(counted) == len(found) > 100
        flights = first_flights()
        times = pandas.to_datetime(flights["time_hour"]).dt.strftime("%Y-%m-%dT%H:00:00.000Z")
        wanted = Counter(zip(flights["origin"], times, strict=True))
        assert counted == Counter({key: wanted[key] for key in counted})
        assert len(wanted) - len(counted) < 20


def first_flights() -> pandas.DataFrame:
    return flight_table().sort_values("time_hour", kind="stable").head(FLIGHTS)


def hours_of(values: list[str | None]) -> set[tuple[str, str]]:
    rows = [json.loads(each or "") for each in values]
    return {(row["origin"], row["start"]) for row in rows}


def place(flight: dict[object, object]) -> tuple[object, ...]:
    return tuple(flight[name] for name in ("carrier", "flight", "origin", "time_hour"))


@pytest.fixture
def bench(
    spark: SparkSession,
    node: RunningNode,
    fresh_topic: Callable[[str], str],
    tmp_path: Path,
    whole_matrix: bool,
) -> Bench:
    if not whole_matrix:
        pytest.skip("takes ten seconds or more, so it runs only in make test-spark; the page has short runs")
    return Bench(
        Cluster(spark, "odradek", {"kafka.bootstrap.servers": node.bootstrap}), fresh_topic, tmp_path
    )


def test_bad_code_is_rolled_back_on_its_checkpoint(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    """A query whose code fails stays down with an alert, while the other one ends well. The old code goes on from the
    same checkpoint, and each row is there once. Its lag is an alert until it has caught up."""
    assert bench.run("--rule", BROKEN_RULE) == 1
    assert "late: stays down: " in capfd.readouterr().err
    assert ("late", "down") in bench.alert_states()
    bench.check_hours()
    assert bench.run("--lag-records", "10", "--lag-seconds", "0") == 0
    assert ("late", "behind") in bench.alert_states()
    assert dict(bench.alert_states()) == {"late": None, "hours": None}
    bench.check_late()
    bench.check_hours()


def test_new_code_on_the_old_checkpoint(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    """A query without state goes on with new code. One with other state stays down at once, and writes nothing. The old
    code, or a copy's offsets with new checkpoints, go on. A checkpoint that was put back is refused."""
    assert bench.run() == 0
    copy = bench.checkpoints.with_name("copy")
    shutil.copytree(bench.checkpoints, copy)
    more = bench.cluster.read(bench.flights).select("key", "value")
    bench.cluster.write(more, bench.flights)
    hours = bench.values(bench.hours)
    late = len(bench.values(bench.late))
    assert bench.run("--rule", "dep_delay > 120", "--by", "origin,carrier") == 1
    assert "hours: stays down: [STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE" in capfd.readouterr().err
    assert bench.values(bench.hours) == hours
    added = [json.loads(each or "")["dep_delay"] for each in bench.values(bench.late)[late:]]
    assert min(added) > 120
    assert len(added) == (first_flights()["dep_delay"] > 120).sum()
    # The old code.
    assert bench.run() == 0
    assert bench.values(bench.hours)[: len(hours)] == hours
    # Back to the copy: new checkpoints and topics.
    begun = finished_offsets(copy / "late")
    bench.checkpoints = bench.checkpoints.with_name("rolled-back")
    bench.late, bench.hours = (
        bench.made.create(f"{each}-again", partitions=1) for each in (bench.late, bench.hours)
    )
    assert bench.run("--start-from", str(copy)) == 0
    assert finished_offsets(bench.checkpoints / "late") != begun
    bench.check_late()
    assert hours_of(hours) <= hours_of(bench.values(bench.hours))
    # A copy that is put back in place of the checkpoint.
    shutil.rmtree(bench.checkpoints)
    shutil.copytree(copy, bench.checkpoints)
    capfd.readouterr()
    assert bench.run() == 1
    assert capfd.readouterr().err.count("stays down: the topic already has batch") == 2
    bench.check_late()


@pytest.mark.parametrize(("query", "batch"), [("late", 0), ("late", 1), ("hours", 0), ("hours", 1)])
def test_a_killed_application(
    bench: Bench, node: RunningNode, tmp_path: Path, query: str, batch: int
) -> None:
    """An application that is killed when a batch of either query has begun writes each row once in the next run."""
    kill_job(["operate", *bench.words()], bench.checkpoints / query, batch, tmp_path)
    assert bench.run() == 0
    bench.check_late()
    bench.check_hours()
