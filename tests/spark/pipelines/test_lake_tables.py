"""Delta and Iceberg tables of real flights: loads by time, kills at each step, replay, small files, other writers."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pandas
import pyarrow
import pyarrow.parquet
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")
pytest.importorskip("deltalake", reason="the extra delta is not installed")
pytest.importorskip("pyiceberg", reason="the extra iceberg is not installed")

import deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from odradek import Producer
from odradek.spark.pipelines import offline_load
from odradek.spark.pipelines.flight_table import flight_table
from odradek.spark.pipelines.job import Failed
from odradek.spark.pipelines.job import Topics as Cluster
from odradek.spark.pipelines.offline_load import Kind, Wanted, load
from odradek.spark.pipelines.progress import ProgressLine
from odradek.spark.pipelines.tables.committed import CommittedTable, Compaction
from odradek.spark.pipelines.tables.delta import DeltaLoads
from odradek.spark.pipelines.tables.iceberg import IDENTIFIER, IcebergLoads
from odradek.spark.pipelines.tables.landing import Landing
from tests.node_process import RunningNode
from tests.spark.pipelines.killed_job import kill_load
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = 2000
PARTITIONS = 2
JSON = "month int, day int, origin string, tailnum string"
SECOND, THIRD = (int(pandas.Timestamp(f"2013-01-0{day}T05:00Z").timestamp() * 1000) for day in (2, 3))
"""The first hours of the second and the third day of flights, in ms since 1970."""
Row = tuple[int, int, str | None]


class Killed(BaseException):
    """Raised to end a job at a step that a test chooses."""


def first_flights() -> pandas.DataFrame:
    flights = flight_table().sort_values("time_hour", kind="stable").head(FLIGHTS)
    return flights.assign(ms=pandas.to_datetime(flights["time_hour"]).astype("int64") // 1_000_000)


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, node: RunningNode) -> Cluster:
    """The node, with a topic `flights-timed` whose records have the times of the flights."""
    Topics(node.bootstrap).create("flights-timed", partitions=PARTITIONS)
    flights = first_flights()
    values = flights.to_json(orient="records", lines=True).splitlines()
    with Producer(bootstrap_servers=node.bootstrap) as producer:
        for number, (value, ms) in enumerate(zip(values, flights["ms"], strict=True)):
            producer.send(
                "flights-timed", value.encode(), partition=number % PARTITIONS, timestamp_ms=int(ms)
            )
    return Cluster(spark, "odradek", {"kafka.bootstrap.servers": node.bootstrap})


@pytest.fixture
def line() -> ProgressLine:
    return ProgressLine("test", io.StringIO())


def wanted_of(kind: Kind, table: Path, **more: object) -> Wanted:
    wanted = Wanted("flights-timed", table, 600, JSON, ("day",), kind)
    return attrs.evolve(wanted, **more)


def iceberg_table(path: Path) -> Table:
    return SqlCatalog("odradek", uri=f"sqlite:///{path}/_catalog.db").load_table(IDENTIFIER)


def read_table(kind: Kind, path: Path) -> pyarrow.Table:
    """Read a table as any reader of its format does, without Spark."""
    if kind is Kind.DELTA:
        return deltalake.DeltaTable(path).to_pyarrow_table()
    return iceberg_table(path).scan().to_arrow()


def rows_of(kind: Kind, path: Path) -> list[Row]:
    rows = read_table(kind, path).select(["partition", "offset", "tailnum"])
    return sorted((row["partition"], row["offset"], row["tailnum"]) for row in rows.to_pylist())


def by_place(table: pyarrow.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: (row["partition"], row["offset"]))


def expected_rows(since_ms: int = 0, until_ms: int = 1 << 60) -> list[Row]:
    flights = first_flights().reset_index(drop=True)
    flights = flights[(flights["ms"] >= since_ms) & (flights["ms"] < until_ms)]
    return sorted(
        (number % PARTITIONS, number // PARTITIONS, tail if isinstance(tail, str) else None)
        for number, tail in flights["tailnum"].items()
    )


def live_files(kind: Kind, path: Path) -> int:
    if kind is Kind.DELTA:
        return len(deltalake.DeltaTable(path).file_uris())
    return len(list(iceberg_table(path).scan().plan_files()))


def run_killed(cluster: Cluster, wanted: Wanted, line: ProgressLine) -> int:
    """Run a job that is killed once at each of its steps, until it ends. Return the number of kills."""
    killed: set[str] = set()

    def kill_once(step: str) -> None:
        if step not in killed:
            killed.add(step)
            raise Killed(step)

    while True:
        try:
            load(cluster, wanted, Landing(wanted.table, "load", kill_once), line)
        except Killed:
            continue
        return len(killed)


@pytest.mark.parametrize("kind", [Kind.ICEBERG, Kind.DELTA])
def test_loads_by_time_replay_and_compaction(
    cluster: Cluster, tmp_path: Path, line: ProgressLine, kind: Kind, whole_matrix: bool
) -> None:
    """A table that begins at a time goes on later, killed at each step. A replay with a new column replaces the rows of
    a day, and merged files have the same rows. Each record is there once."""
    if kind is Kind.DELTA and not whole_matrix:
        pytest.skip(
            "the loads of Delta are killed in another test, so its replay runs only in make test-spark"
        )
    wanted = wanted_of(kind, tmp_path)
    first = attrs.evolve(wanted, since_ms=SECOND, until_ms=THIRD)
    assert run_killed(cluster, first, line) == 4
    assert rows_of(kind, tmp_path) == expected_rows(SECOND, THIRD)
    landing = Landing(tmp_path, "load")
    with pytest.raises(
        Failed, match=r"from offset \d+ to \d+ would be left out, since they are older than --since"
    ):
        load(cluster, attrs.evolve(wanted, since_ms=THIRD + 8 * 3_600_000), landing, line)
    assert load(cluster, wanted, landing, line)[-1].records == 0
    assert rows_of(kind, tmp_path) == expected_rows(SECOND)
    again = wanted_of(
        kind, tmp_path, json_schema=f"{JSON}, dest string", since_ms=THIRD - 3_600_000, replay=True
    )
    assert run_killed(cluster, again, line) == 3
    assert rows_of(kind, tmp_path) == expected_rows(SECOND)
    rows = by_place(read_table(kind, tmp_path))
    late = [(row["partition"], row["offset"]) for row in rows if row["dest"] is not None]
    assert late == [row[:2] for row in expected_rows(THIRD - 3_600_000)]
    before = live_files(kind, tmp_path)
    assert run_killed(cluster, attrs.evolve(wanted, compact=True), line) == 2
    assert by_place(read_table(kind, tmp_path)) == rows
    assert live_files(kind, tmp_path) == len({row["day"] for row in rows}) < before
    # A table that was compacted goes on: nothing is loaded again.
    assert load(cluster, wanted, landing, line)[0].records == 0


@pytest.mark.parametrize("kind", [Kind.ICEBERG, Kind.DELTA])
def test_a_job_that_is_killed_in_the_middle(
    cluster: Cluster, tmp_path: Path, line: ProgressLine, kind: Kind, whole_matrix: bool
) -> None:
    """A job whose processes are killed with SIGKILL at each of its steps, and started again, loads each record once."""
    if not whole_matrix:
        pytest.skip("starts other Sparks, so it runs only in make test-spark")
    words = ["--topic", "flights-timed", "--bootstrap", cluster.bootstrap, "--json", JSON]
    words += ["--table", str(tmp_path), "--partition-by", "day", "--max-records", "1200"]
    words.append(f"--{kind.value.lower()}")
    for step in ("write the data", "land", "landed"):
        kill_load(words, step, tmp_path)
    assert offline_load.main(words) == 0
    assert rows_of(kind, tmp_path) == expected_rows()


def staged_file(folder: Path, columns: dict[str, Sequence[object]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "x.parquet")
    return folder


class TestIcebergLoads:
    def test_the_summary_names_query_batch_and_offsets(self, tmp_path: Path) -> None:
        """Each snapshot of a load has the query, the batch and the next offsets. A merge of files keeps them, and a
        table that was rolled back needs its records again. Files of a killed load are removed."""
        loads = IcebergLoads(tmp_path)
        assert loads.ends("t", "id", [0]) is None
        for end in (1, 2):
            loads.append(
                staged_file(loads.staging(end), {"p": ["a"], "offset": [end]}), ["p"], "id", {0: end}
            )
        summary = iceberg_table(tmp_path).snapshots()[-1].summary
        assert summary is not None
        found = {
            key: text for key, text in summary.additional_properties.items() if key.startswith("odradek.")
        }
        assert found == {"odradek.query": "id", "odradek.batch": "1", "odradek.ends": json.dumps({"0": 2})}
        assert loads.compact(1 << 20) == Compaction(2, 1)
        assert loads.compact(1 << 20) == Compaction(0, 0)
        killed = staged_file(loads.staging(9), {"p": ["a"], "offset": [3]})
        again = IcebergLoads(tmp_path)
        assert again.ends("t", "id", [0]) == {0: 2}
        assert not killed.exists()
        assert len(list((tmp_path / "data").iterdir())) == 3
        # A load whose records were all aborted has no files.
        again.append(again.staging(4), ["p"], "id", {0: 5})
        assert IcebergLoads(tmp_path).ends("t", "id", [0]) == {0: 5}
        table = iceberg_table(tmp_path)
        table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()
        assert IcebergLoads(tmp_path).ends("t", "id", [0]) == {0: 1}
        with pytest.raises(Failed, match="holds another topic than 't'"):
            IcebergLoads(tmp_path).ends("t", "other", [0])

    def test_two_writers_of_a_table(self, tmp_path: Path) -> None:
        """If two jobs begin at the same state of a table, only one of them can commit, though the package repeats
        commits by itself."""
        for start in (0, 1):
            one, other = IcebergLoads(tmp_path), IcebergLoads(tmp_path)
            for each in (one, other):
                assert each.ends("t", "id", [0]) == ({0: start} if start else None)
            if start:
                table = iceberg_table(tmp_path)
                assert table.properties["commit.retry.num-retries"] == "0"
            names = [staged_file(tmp_path / "data" / f"load-{start}-{each}", {"a": [1]}) for each in "xy"]
            one.append(names[0], [], "id", {0: start + 1})
            with pytest.raises(Failed, match="another job has written to"):
                other.append(names[1], [], "id", {0: start + 1})
            assert iceberg_table(tmp_path).scan().to_arrow().num_rows == start + 1

    def test_a_table_of_another_job(self, tmp_path: Path) -> None:
        """A property that lets commits be repeated is set back. A table without offsets of a load is refused."""
        loads = IcebergLoads(tmp_path)
        assert loads.ends("t", "id", [0]) is None
        loads.append(staged_file(loads.staging(0), {"a": [1]}), [], "id", {0: 1})
        table = iceberg_table(tmp_path)
        with table.transaction() as changes:
            changes.set_properties({"commit.retry.num-retries": "9"})
        assert IcebergLoads(tmp_path).ends("t", "id", [0]) == {0: 1}
        assert iceberg_table(tmp_path).properties["commit.retry.num-retries"] == "0"
        iceberg_table(tmp_path).append(pyarrow.table({"a": [2]}))
        assert IcebergLoads(tmp_path).ends("t", "id", [0]) == {0: 1}
        table = iceberg_table(tmp_path)
        table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()
        with pytest.raises(Failed, match="has the offsets of a load: another job has made the table, or"):
            IcebergLoads(tmp_path).ends("t", "id", [0])

    def test_the_missing_package_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without pyiceberg, the sentence says what to install."""
        monkeypatch.setitem(sys.modules, "pyiceberg", None)
        with pytest.raises(Failed, match=r"pip install 'odradek\[iceberg\]'"):
            IcebergLoads(tmp_path)


def test_what_a_table_cannot_do_is_refused(cluster: Cluster, tmp_path: Path, line: ProgressLine) -> None:
    """Parquet without commits refuses replay and merges. A replay needs times, and a table that has loads. A table of
    another format is named."""
    refused: list[tuple[Wanted, str]] = [
        (wanted_of(Kind.PARQUET, tmp_path, compact=True), "need a format with commits"),
        (wanted_of(Kind.ICEBERG, tmp_path, replay=True), "needs --since or --until"),
        (wanted_of(Kind.ICEBERG, tmp_path, replay=True, since_ms=1), "has no load yet"),
        (wanted_of(Kind.DELTA, tmp_path), "is a table of Iceberg: add --iceberg"),
    ]
    for wanted, sentence in refused:
        with pytest.raises(Failed, match=sentence):
            load(cluster, wanted, Landing(tmp_path, "load"), line)


def test_both_formats_keep_the_contract() -> None:
    """Delta and Iceberg are tables with commits for the type checker and the job."""
    kinds: list[Callable[[Path], CommittedTable]] = [DeltaLoads, IcebergLoads]
    assert len(kinds) == 2
