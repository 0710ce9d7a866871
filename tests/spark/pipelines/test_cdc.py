"""The job `cdc` on change events of a fleet made of real flights, in one Spark against our node."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")
pytest.importorskip("deltalake", reason="the extra delta is not installed")

import pyarrow as pa
from pyspark.errors import StreamingQueryException

from odradek import Producer
from odradek.spark.pipelines.cdc import command
from odradek.spark.pipelines.cdc.envelopes import Captured
from odradek.spark.pipelines.cdc.fleet import FIRST_MS, FLEET_COLUMNS, Fleet, disorder, events_frame
from odradek.spark.pipelines.cdc.merging import MergedTable
from odradek.spark.pipelines.flight_table import flight_table, plane_table
from odradek.spark.pipelines.job import Failed
from odradek.spark.pipelines.job import Topics as Cluster
from odradek.spark.pipelines.progress import ProgressLine
from odradek.spark.pipelines.streams import run_query
from tests.node_process import RunningNode
from tests.spark.pipelines.killed_job import kill_job
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = 3000
DAY_MS = 24 * 3600 * 1000


class Killed(Exception):
    """Raised to end a query at a step that a test chooses."""


@pytest.fixture
def cluster(spark: SparkSession, node: RunningNode) -> Cluster:
    return Cluster(spark, "odradek", {"kafka.bootstrap.servers": node.bootstrap})


@pytest.fixture
def captured(spark: SparkSession) -> Captured:
    """The fleet's table."""
    return command.captured_of(FLEET_COLUMNS, "tailnum", "lsn")


@pytest.fixture
def line() -> ProgressLine:
    return ProgressLine("test", io.StringIO())


def flown_fleet() -> Fleet:
    """Make a fleet of all planes, with the first flights of January. Half of the planes leave it, and some return."""
    fleet = Fleet(idle_days=1)
    fleet.snapshot(plane_table(), FIRST_MS)
    fleet.fly(flight_table().sort_values("time_hour", kind="stable").head(FLIGHTS))
    return fleet


def rows_of(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of the Delta table by their key, without the job's own columns."""
    import deltalake

    rows = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
    assert len({row["tailnum"] for row in rows}) == len(rows)
    return {row["tailnum"]: {name: row[name] for name in row if not name.startswith("_")} for row in rows}


def changes_of(*rows: tuple[str, int, bool]) -> pa.Table:
    """Make changes of a table with the key `k`, from pairs of key, position and whether it is a deletion."""
    return pa.table(
        {
            "k": [key for key, _, _ in rows],
            "_deleted": [deleted for _, _, deleted in rows],
            "_position": [position for _, position, _ in rows],
            "_changed_ms": [position * DAY_MS for _, position, _ in rows],
        }
    )


def test_the_fleet_has_what_pandas_computes() -> None:
    """The made fleet has the last airport of each aircraft that is left, and events of all kinds with tombstones."""
    fleet = flown_fleet()
    flown = (
        flight_table()
        .sort_values("time_hour", kind="stable")
        .head(FLIGHTS)
        .dropna(subset=["dep_time", "tailnum"])
    )
    last = flown.groupby("tailnum").last()["dest"]
    assert {tail: row.airport for tail, row in fleet.rows.items()} == {
        tail: last.get(tail) for tail in fleet.rows
    }
    ops = [json.loads(value)["op"] for _, value in fleet.events if value is not None]
    created = {
        json.loads(key)["tailnum"]
        for (key, value) in fleet.events
        if value and json.loads(value)["op"] == "c"
    }
    deleted = {json.loads(key)["tailnum"] for (key, value) in fleet.events if value is None}
    assert len(created & deleted & set(fleet.rows)) > 0, "some aircraft return"
    assert ops.count("r") == 3322
    assert ops.count("d") == len([1 for _, value in fleet.events if value is None]) > 1000


@pytest.mark.parametrize("places", [0, 400])
def test_the_table_is_the_source(
    cluster: Cluster,
    captured: Captured,
    node: RunningNode,
    tmp_path: Path,
    fresh_topic: Callable[[str], str],
    line: ProgressLine,
    places: int,
) -> None:
    """After snapshot and stream, in order or not, the Delta table equals the source. Neither kills at
    each step nor a second job from the start change it."""
    name = Topics(node.bootstrap).create(fresh_topic("fleet"), partitions=3)
    fleet = flown_fleet()
    events = disorder(fleet.events, places) if places else fleet.events
    cluster.write(events_frame(cluster.spark, events, 3 if places else 0), name)
    killed: list[str] = []

    def kill_once(step: str) -> None:
        if places and step not in killed:
            killed.append(step)
            raise Killed(step)

    table = tmp_path / "fleet.delta"
    merged = MergedTable(table, captured.keys, 7 * DAY_MS, kill_once)
    capture = command.Capture(cluster, name, captured, merged)
    while True:
        try:
            run_query(line, capture.start(str(tmp_path / "checkpoint"), 3000))
            break
        except StreamingQueryException as ended:
            if "Killed" not in str(ended):
                raise
    assert killed == (["note the deletions", "merge", "merged"] if places else [])
    expected = {tail: attrs.asdict(row) for tail, row in fleet.rows.items()}
    assert rows_of(table) == expected
    if places:
        run_query(line, capture.start(str(tmp_path / "another-checkpoint"), 50_000))
        assert rows_of(table) == expected


def test_a_job_that_is_killed_in_the_middle(
    cluster: Cluster,
    node: RunningNode,
    tmp_path: Path,
    fresh_topic: Callable[[str], str],
    whole_matrix: bool,
) -> None:
    """A job whose processes are killed in the second batch, and started again, gives the table of the source."""
    if not whole_matrix:
        pytest.skip("starts another Spark, so it runs only in make test-spark")
    name = Topics(node.bootstrap).create(fresh_topic("fleet"), partitions=3)
    fleet = flown_fleet()
    cluster.write(events_frame(cluster.spark, disorder(fleet.events, 400), 3), name)
    table, checkpoint = tmp_path / "fleet.delta", tmp_path / "checkpoint"
    places = ["--bootstrap", node.bootstrap, "--topic", name, "--table", str(table)]
    words = [*places, "--checkpoint", str(checkpoint), "--keys", "tailnum", "--columns", FLEET_COLUMNS]
    kill_job(["cdc", *words, "--records-per-batch", "1000"], checkpoint, 1, tmp_path)
    assert command.main(words) == 0
    assert rows_of(table) == {tail: attrs.asdict(row) for tail, row in fleet.rows.items()}


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_changes_gives_the_same_table(tmp_path: Path, seed: int) -> None:
    """Changes merged in any order, in batches of any size and repeated, give the table of their last positions."""
    rng = random.Random(seed)
    history = [(rng.choice("abcdef"), position, rng.random() < 0.4) for position in range(40)]
    last = {key: (position, deleted) for key, position, deleted in history}
    expected = {key: position for key, (position, deleted) in last.items() if not deleted}
    table = MergedTable(tmp_path, ["k"], 1000 * DAY_MS)
    order = rng.sample(history, len(history)) + rng.sample(history, 10)
    while order:
        batch = [order.pop() for _ in range(min(len(order), rng.randrange(1, 6)))]
        newest = {
            key: (key, position, deleted) for key, position, deleted in sorted(batch, key=lambda row: row[1])
        }
        table.merge(changes_of(*newest.values()))
    import deltalake

    rows = deltalake.DeltaTable(tmp_path).to_pyarrow_table().to_pylist()
    assert {row["k"]: row["_position"] for row in rows} == expected
    assert len(rows) == len(expected)


def test_deletions_are_forgotten_after_their_time(tmp_path: Path) -> None:
    """A deletion stands against older changes for the time that was asked for, and then leaves its table."""
    import deltalake

    table = MergedTable(tmp_path, ["k"], 10 * DAY_MS)
    table.merge(changes_of(("a", 1, False), ("b", 1, False)))
    table.merge(changes_of(("a", 5, True)))
    table.merge(changes_of(("a", 4, False), ("b", 6, False)))
    kept = deltalake.DeltaTable(tmp_path / "_deletions")
    assert [row["k"] for row in kept.to_pyarrow_table().to_pylist()] == ["a"]
    table.merge(changes_of(("b", 16, True)))
    assert deltalake.DeltaTable(tmp_path).to_pyarrow_table().num_rows == 0
    kept.update_incremental()
    assert [row["k"] for row in kept.to_pyarrow_table().to_pylist()] == ["b"]


GOOD = {
    "before": None,
    "after": {"tailnum": "N1", "seats": 2},
    "op": "c",
    "ts_ms": 1,
    "source": {"lsn": 1, "ts_ms": 1},
}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("{", "is no JSON, or has a value of another type"),
        (GOOD | {"after": {"tailnum": "N1", "seats": "two"}}, "is no JSON, or has a value of another type"),
        (GOOD | {"op": None}, "has no op"),
        (GOOD | {"op": "t"}, "empties the table"),
        (GOOD | {"op": "x"}, "has an unknown op"),
        (GOOD | {"source": {"ts_ms": 1}}, "has no number source.lsn"),
        (GOOD | {"op": "d"}, r"lacks the key \(tailnum\)"),
        (
            GOOD | {"after": {"tailnum": "N1", "model": "__debezium_unavailable_value"}},
            "REPLICA IDENTITY FULL",
        ),
    ],
)
def test_an_event_that_cannot_be_applied_ends_the_job(
    cluster: Cluster,
    captured: Captured,
    node: RunningNode,
    tmp_path: Path,
    fresh_topic: Callable[[str], str],
    line: ProgressLine,
    value: Any,
    reason: str,
) -> None:
    """The job ends with the place of the event and the reason; nothing of its batch is in the table."""
    name = Topics(node.bootstrap).create(fresh_topic("bad"))
    bad = value if isinstance(value, str) else json.dumps(value)
    Topics(node.bootstrap).send(name, [json.dumps(GOOD).encode(), None, bad.encode()])
    capture = command.Capture(cluster, name, captured, MergedTable(tmp_path / "table", ["tailnum"], DAY_MS))
    query = capture.start(str(tmp_path / "checkpoint"), 100)
    with pytest.raises(Failed, match=f"^the event of {name}-0 at offset 2 .*{reason}"):
        run_query(line, query, capture.failures)
    assert not (tmp_path / "table" / "_delta_log").exists()


def test_an_envelope_with_its_schema(
    cluster: Cluster,
    captured: Captured,
    node: RunningNode,
    tmp_path: Path,
    fresh_topic: Callable[[str], str],
    line: ProgressLine,
) -> None:
    """An event of a connector with `schemas.enable=true` is applied like any other."""
    name = Topics(node.bootstrap).create(fresh_topic("schemas"))
    with Producer(bootstrap_servers=node.bootstrap) as producer:
        producer.send(name, json.dumps({"schema": {"type": "struct"}, "payload": GOOD}).encode()).result()
    capture = command.Capture(cluster, name, captured, MergedTable(tmp_path / "table", ["tailnum"], DAY_MS))
    run_query(line, capture.start(str(tmp_path / "checkpoint"), 100), capture.failures)
    assert {key: row["seats"] for key, row in rows_of(tmp_path / "table").items()} == {"N1": 2}


@pytest.mark.parametrize(
    ("columns", "keys", "sentence"),
    [
        ("a what", "a", "--columns is no schema"),
        ("a int", "b", "--keys names the column 'b', which --columns lacks"),
    ],
)
def test_words_that_name_no_table(spark: SparkSession, columns: str, keys: str, sentence: str) -> None:
    """A wrong schema or key on the command line is one sentence."""
    with pytest.raises(Failed, match=sentence):
        command.captured_of(columns, keys, "lsn")
