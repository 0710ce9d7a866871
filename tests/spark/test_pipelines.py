"""The jobs of `odradek.spark.pipelines` on real flights of 2013, in one Spark against our node."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from odradek import Producer
from odradek.spark.pipelines import changelog, derived_feed, offline_load
from odradek.spark.pipelines.flight_table import flight_table
from odradek.spark.pipelines.flights import flights_frame
from odradek.spark.pipelines.job import Failed
from odradek.spark.pipelines.job import Topics as Cluster
from odradek.spark.pipelines.plots import plot_delays, plot_lag
from odradek.spark.pipelines.progress import ProgressLine, watch_query
from odradek.spark.pipelines.tables.delta import DeltaLoads
from odradek.spark.pipelines.tables.landing import Landed, Landing, table_path
from tests.jepsen.test_histories import troubled_history
from tests.node_process import RunningNode
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = 3000
PNG = b"\x89PNG\r\n\x1a\n"


class Killed(BaseException):
    """Raised to end a job at a step that a test chooses."""


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, node: RunningNode) -> Cluster:
    """The node, with a topic `flights-small` of three partitions that has the first flights of January."""
    Topics(node.bootstrap).create("flights-small", partitions=3)
    cluster = Cluster(spark, "odradek", {"kafka.bootstrap.servers": node.bootstrap})
    # Without transactions there are no markers, which would take offsets. So offsets equal row numbers.
    plain = attrs.evolve(cluster, options={**cluster.options, "delivery": "at-least-once"})
    plain.write(flights_frame(spark, FLIGHTS), "flights-small")
    return cluster


@pytest.fixture(scope="module")
def flights() -> Any:
    """The flights of the topic, in pandas."""
    return flight_table().sort_values("time_hour", kind="stable").head(FLIGHTS)


@pytest.fixture
def line() -> ProgressLine:
    return ProgressLine("test", io.StringIO())


def table_of(landing: Landing) -> list[tuple[int, int, int, str]]:
    """Return the rows of a table of loads as (load, partition, offset, column).

    They are read without Spark, as any Parquet reader can.
    """
    import pyarrow.dataset

    found = []
    for landed in landing.landed():
        data = pyarrow.dataset.dataset(str(landed.path), format="parquet").to_table(
            ["partition", "offset", "tailnum"]
        )
        found += [(landed.number, *row.values()) for row in data.to_pylist()]
    return sorted(found, key=lambda row: row[:3])


class TestOfflineLoad:
    WANTED = ("month int, day int, origin string, tailnum string", ("day",))

    def wanted(self, table: Path, max_records: int = 2000) -> offline_load.Wanted:
        return offline_load.Wanted("flights-small", table, max_records, *self.WANTED)

    def test_the_same_table_wherever_it_is_killed(
        self, spark: SparkSession, cluster: Cluster, flights: Any, line: ProgressLine, tmp_path: Path
    ) -> None:
        """A job killed before each possible step and restarted writes the same table as an undisturbed job. Spark reads
        the directory as a table, without unfinished files."""
        steps: list[str] = []
        whole = Landing(tmp_path / "whole", "load", steps.append)
        lag = offline_load.load(cluster, self.wanted(tmp_path / "whole"), whole, line)
        assert [point.records for point in lag] == [FLIGHTS, FLIGHTS - 2000, 0]
        expected = table_of(whole)
        assert sorted(row[3] or "" for row in expected) == sorted(
            tail if isinstance(tail, str) else "" for tail in flights["tailnum"]
        )
        assert len({row[1:3] for row in expected}) == FLIGHTS
        killed: set[str] = set()

        def kill_once(step: str) -> None:
            if step not in killed:
                killed.add(step)
                raise Killed(step)

        deaths = 0
        landing = Landing(tmp_path / "killed", "load", kill_once)
        while True:
            try:
                offline_load.load(cluster, self.wanted(tmp_path / "killed"), landing, line)
                break
            except Killed:
                deaths += 1
                # A real task that is killed while writing leaves half a file, which no record mentions.
                staged = tmp_path / "killed" / "_staging" / "load=00000000"
                staged.mkdir(parents=True, exist_ok=True)
                (staged / "part-00000-half.parquet").write_bytes(b"PAR1 half")
        assert killed == set(steps)
        assert deaths == len(killed) >= 7
        assert table_of(landing) == expected
        half = tmp_path / "killed" / "_staging" / "load=00000002"
        half.mkdir(parents=True)
        (half / "x.parquet").write_bytes(b"PAR1 half")
        rows = spark.read.parquet(str(tmp_path / "killed"))
        assert {"load", "day", "origin", "offset"} <= set(rows.columns)
        assert rows.count() == FLIGHTS

    def test_what_comes_later_is_loaded_later(
        self,
        cluster: Cluster,
        node: RunningNode,
        line: ProgressLine,
        tmp_path: Path,
        fresh_topic: Callable[[str], str],
    ) -> None:
        """Periodic loads each add the new records, and an empty load adds nothing. Values that are not JSON stay
        bytes."""
        import pyarrow.dataset

        topics = Topics(node.bootstrap)
        name = topics.create(fresh_topic("load"))
        wanted = offline_load.Wanted(name, tmp_path, partition_by=["day"])
        landing = Landing(tmp_path, "load")
        for values in ([b"1", b"2", b"3"], [], [b"4"]):
            topics.send(name, values)
            assert offline_load.load(cluster, wanted, landing, line)[-1].records == 0
        loads = [
            pyarrow.dataset.dataset(str(landed.path), format="parquet").to_table()["value"].to_pylist()
            for landed in landing.landed()
        ]
        assert loads == [[b"1", b"2", b"3"], [b"4"]]

    def test_what_would_not_be_the_same_table_is_refused(
        self,
        cluster: Cluster,
        node: RunningNode,
        line: ProgressLine,
        tmp_path: Path,
        fresh_topic: Callable[[str], str],
    ) -> None:
        """A job refuses another topic, a recreated topic, records lost to retention, and a second writer."""
        topics = Topics(node.bootstrap)
        name = topics.create(fresh_topic("load"))
        topics.send(name, [b"1", b"2", b"3"])
        topic_id, bounds = cluster.bounds(name)
        landing = Landing(tmp_path, "load")
        staged: list[str] = []

        def write(directory: str) -> dict[str, Any]:
            Path(directory).mkdir(parents=True)
            staged.append(directory)
            return {"rows": 1}

        landing.land(0, name, topic_id, {0: (0, 1)}, write)
        assert not Path(staged[0]).exists()
        topics.delete_records(name, {0: 2})
        wanted = offline_load.Wanted(name, tmp_path)
        with pytest.raises(
            Failed, match=f"records are lost: {name}-0 now begins at offset 2, and the table ends at offset 1"
        ):
            offline_load.load(cluster, wanted, landing, line)
        with pytest.raises(Failed, match=f"holds the topic '{name}', not 'flights-small'"):
            offline_load.load(cluster, self.wanted(tmp_path), landing, line)
        with landing.locked(), pytest.raises(Failed, match="another job writes to"):
            offline_load.load(cluster, wanted, Landing(tmp_path, "load"), line)
        topics.delete(name)
        topics.create(name)
        with pytest.raises(Failed, match="was deleted and created again"):
            offline_load.load(cluster, wanted, landing, line)
        assert bounds == {0: (0, 3)}

    def test_a_delta_table_wherever_it_is_killed(
        self, spark: SparkSession, cluster: Cluster, line: ProgressLine, tmp_path: Path
    ) -> None:
        """Data and offsets of a Delta table are one commit. A job gives the same table after kills, and a job without
        --delta or for another topic is refused."""
        deltalake = pytest.importorskip("deltalake", reason="the extra delta is not installed")
        wanted = attrs.evolve(self.wanted(tmp_path, 2500), kind=offline_load.Kind.DELTA)
        killed: set[str] = set()

        def kill_once(step: str) -> None:
            if step not in killed:
                killed.add(step)
                raise Killed(step)

        deaths = 0
        landing = Landing(tmp_path, "load", kill_once)
        while True:
            try:
                lag = offline_load.load(cluster, wanted, landing, line)
                break
            except Killed:
                deaths += 1
        assert deaths == 4
        assert lag[-1].records == 0
        table = deltalake.DeltaTable(str(tmp_path))
        rows = table.to_pyarrow_table(columns=["partition", "offset", "day", "timestamp"])
        _, bounds = cluster.bounds("flights-small")
        everything = {(index, offset) for index, (_, end) in bounds.items() for offset in range(end)}
        assert rows.num_rows == FLIGHTS
        assert (
            set(zip(*(rows[name].to_pylist() for name in ("partition", "offset")), strict=True)) == everything
        )
        assert table.metadata().partition_columns == ["day"]
        assert str(rows.schema.field("timestamp").type) == "timestamp[us, tz=UTC]"
        with pytest.raises(Failed, match="is a table of Delta: add --delta"):
            offline_load.load(cluster, self.wanted(tmp_path), Landing(tmp_path, "load"), line)
        loads = DeltaLoads(tmp_path)
        topic_id, _ = cluster.bounds("flights-small")
        assert loads.ends("flights-small", topic_id, [0, 1, 2]) == {
            index: end for index, (_, end) in bounds.items()
        }
        with pytest.raises(Failed, match="holds another topic than 'flights-small'"):
            loads.ends("flights-small", "00", [0, 1, 2])

    def test_two_writers_of_a_delta_table(self, tmp_path: Path) -> None:
        """If two jobs begin at the same state of a Delta table, only one of them can commit."""
        deltalake = pytest.importorskip("deltalake", reason="the extra delta is not installed")
        import pyarrow.parquet

        staged, table = tmp_path / "staged", tmp_path / "table"
        staged.mkdir()
        pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), staged / "x.parquet")
        for start in (0, 1):
            one, other = DeltaLoads(table), DeltaLoads(table)
            for each in (one, other):
                assert each.ends("t", "id", [0, 1]) == ({0: start} if start else None)
            one.append(staged, [], "id", {0: start + 1})
            with pytest.raises(Failed, match="another job has written to"):
                other.append(staged, [], "id", {0: start + 1})
            assert deltalake.DeltaTable(str(table)).count() == start + 1

    @pytest.mark.parametrize(
        "text", ["s3a://bucket/table", "s3:/bucket", "GS://b/t", "abfss://c@a/t", "hdfs://n/t"]
    )
    def test_tables_that_are_not_mounted(
        self, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The path of an object store is refused, and no local directory of this name is created."""
        monkeypatch.chdir(tmp_path)
        with pytest.raises(
            Failed,
            match=r"in an object store, which cannot rename|not a directory that is mounted on this machine",
        ):
            table_path(text)
        assert list(tmp_path.iterdir()) == []
        assert table_path("file:///a/b") == table_path("file:/a/b") == Path("/a/b")
        assert table_path("a/b:c") == Path("a/b:c")

    def test_a_topic_made_anew_under_a_plan(self, tmp_path: Path) -> None:
        """A plan left by a crash is used again only if the topic still has the same id."""
        landing = Landing(tmp_path, "load")
        assert landing.plan(0, "id", lambda: {0: (0, 5)}) == {0: (0, 5)}
        assert landing.plan(0, "id", lambda: {0: (0, 9)}) == {0: (0, 5)}
        with pytest.raises(Failed, match="not finished when its topic was deleted and created again"):
            landing.plan(0, "other", lambda: {0: (0, 9)})

    def test_a_topic_made_anew_while_it_is_read(
        self,
        cluster: Cluster,
        node: RunningNode,
        tmp_path: Path,
        fresh_topic: Callable[[str], str],
        line: ProgressLine,
    ) -> None:
        """If a topic is recreated while it is read, the load is not committed, since it may have records of both."""
        topics = Topics(node.bootstrap)
        name = topics.create(fresh_topic("anew"))
        topics.send(name, [b"1"])

        def make_anew(step: str) -> None:
            if step == "write the data":
                topics.delete(name)
                topics.create(name)
                topics.send(name, [b"2"])

        landing = Landing(tmp_path, "load", make_anew)
        with pytest.raises(Failed, match="was deleted and created again while this job read it"):
            offline_load.load(
                cluster, offline_load.Wanted(name, tmp_path, partition_by=["day"]), landing, line
            )
        assert landing.landed() == []

    def test_what_was_not_committed_is_not_loaded(
        self,
        cluster: Cluster,
        node: RunningNode,
        tmp_path: Path,
        fresh_topic: Callable[[str], str],
        line: ProgressLine,
    ) -> None:
        """Aborted records are not loaded, and an open transaction is left to the next load."""
        import pyarrow.dataset

        name = Topics(node.bootstrap).create(fresh_topic("transactions"))
        wanted = offline_load.Wanted(name, tmp_path, partition_by=["day"])
        landing = Landing(tmp_path, "load")
        with Producer(bootstrap_servers=node.bootstrap, transactional_id=name) as producer:
            producer.init_transactions()
            for value in (b"committed", b"aborted", b"late"):
                producer.begin_transaction()
                producer.send(name, value).result()
                if value == b"committed":
                    producer.commit_transaction()
                elif value == b"aborted":
                    producer.abort_transaction()
            offline_load.load(cluster, wanted, landing, line)
            producer.commit_transaction()
        offline_load.load(cluster, wanted, landing, line)
        loads = [
            pyarrow.dataset.dataset(str(landed.path), format="parquet").to_table()["value"].to_pylist()
            for landed in landing.landed()
        ]
        assert loads == [[b"committed"], [b"late"]]

    def test_shares_of_a_load(self, tmp_path: Path) -> None:
        """Each partition gets an equal share of a load, up to its end. Others get the unused rest."""
        wanted = offline_load.Wanted("t", tmp_path, 100)
        bounds = {0: (5, 10), 1: (0, 1000), 2: (0, 0)}
        first = offline_load._next_ranges(wanted, bounds, None)
        assert first == {0: (5, 10), 1: (0, 95), 2: (0, 0)}
        last = Landed(0, tmp_path, "t", "id", first)
        assert offline_load._next_ranges(wanted, bounds, last) == {0: (10, 10), 1: (95, 195), 2: (0, 0)}


def test_changelog_refreshed_is_changelog_from_the_start(
    spark: SparkSession,
    cluster: Cluster,
    node: RunningNode,
    flights: Any,
    line: ProgressLine,
    tmp_path: Path,
    fresh_topic: Callable[[str], str],
) -> None:
    """The changelog has the last flight of each aircraft, as computed by pandas. Refreshed in steps with kills and
    deletions, it is the same."""
    import pyarrow.dataset

    topics = Topics(node.bootstrap)
    name = topics.create(fresh_topic("changelog"), partitions=3)
    rows = flights_frame(spark, FLIGHTS)
    cluster.write(rows.limit(1500), name)

    def contents(made: Landed | None) -> dict[str, int]:
        assert made is not None
        table = (
            pyarrow.dataset.dataset(str(made.path), format="parquet").to_table(["key", "value"]).to_pylist()
        )
        return {row["key"].decode(): json.loads(row["value"])["flight"] for row in table}

    def expected(count: int, gone: set[str]) -> dict[str, int]:
        last = flights.head(count).dropna(subset=["tailnum"]).groupby("tailnum").last()["flight"]
        return {tail: int(flight) for tail, flight in last.items() if tail not in gone}

    killed: set[str] = set()

    def kill_once(step: str) -> None:
        if step in ("land", "landed", "remove an old directory") and step not in killed:
            killed.add(step)
            raise Killed(step)

    def refresh(landing: Landing) -> Landed | None:
        while True:
            try:
                return changelog.refresh(cluster, name, landing, line)
            except Killed:
                continue

    table = Landing(tmp_path, "version", kill_once)
    assert contents(refresh(table)) == expected(1500, set())
    again = set(flights.iloc[1500:]["tailnum"].dropna())
    gone = set(sorted(set(expected(1500, set())) - again)[:50])
    with Producer(bootstrap_servers=node.bootstrap) as producer:
        for tail in sorted(gone):
            producer.send(name, None, key=tail.encode())
    assert contents(refresh(table)) == expected(1500, gone)
    cluster.write(rows.offset(1500), name)
    final = refresh(table)
    assert contents(final) == expected(FLIGHTS, gone)
    assert refresh(table) == final
    assert [landed.number for landed in table.landed()] == [1, 2]
    assert killed == {"land", "landed", "remove an old directory"}


def test_derived_feed_has_the_sums_of_every_closed_window(
    cluster: Cluster,
    node: RunningNode,
    flights: Any,
    tmp_path: Path,
    fresh_topic: Callable[[str], str],
    checkpoint: str,
) -> None:
    """The feed has the flights, cancellations and mean delay by airport and hour, as computed by pandas. The plots are
    drawn."""
    import pandas

    out = io.StringIO()
    target = Topics(node.bootstrap).create(fresh_topic("delays"))
    query = derived_feed.start(
        cluster, "flights-small", target, checkpoint, watermark="3 hours", records_per_batch=1500
    )
    try:
        shown = watch_query(ProgressLine("test", out), query)
    finally:
        query.stop()
    assert sum(each["rows"] for each in shown) == FLIGHTS
    assert sum(each["late"] for each in shown) == 0
    assert "records" in out.getvalue()
    records = (
        cluster.read(target)
        .selectExpr("cast(key as string) as key", "cast(value as string) as value")
        .collect()
    )
    feed = {row["key"]: json.loads(row["value"]) for row in records}
    assert len(feed) == len(records)
    times = pandas.to_datetime(flights["time_hour"])
    closed = times.max() - pandas.Timedelta(hours=4)
    sums = {}
    for (origin, start), rows in flights.assign(start=times)[times <= closed].groupby(["origin", "start"]):
        sums[f"{origin} {start:%Y-%m-%dT%H:%M}"] = (
            len(rows),
            int(rows["dep_delay"].isna().sum()),
            rows["dep_delay"].mean(),
        )
    assert set(sums) <= set(feed)
    for key, (count, cancelled, mean) in sums.items():
        assert (feed[key]["flights"], feed[key]["cancelled"]) == (count, cancelled)
        assert feed[key].get("mean_dep_delay", 0.0) == pytest.approx(0.0 if mean != mean else mean)
    by_hour = derived_feed.delays_by_hour(cluster, target)
    assert set(by_hour) == {"EWR", "JFK", "LGA"}
    assert all(5 <= hour <= 23 for hours in by_hour.values() for hour in hours)
    plot_delays(tmp_path / "delays.png", "Delays", by_hour)
    assert (tmp_path / "delays.png").read_bytes().startswith(PNG)
    plot_lag(tmp_path / "lag.png", "Lag", [offline_load.LagPoint(0, 10), offline_load.LagPoint(1, 0)])
    assert (tmp_path / "lag.png").read_bytes().startswith(PNG)


def test_exactly_once_is_never_passed_over() -> None:
    """For exactly-once with a format whose sink would ignore that option, the job is refused: rows could be
    duplicated."""
    topics = Cluster(None, "odradek", {})  # type: ignore[arg-type]  # refused before a query is made
    assert derived_feed.delivery_options(topics, "at-least-once") == {"delivery": "at-least-once"}
    for given in ("exactly-once", None):
        assert derived_feed.delivery_options(topics, given) == {"delivery": "exactly-once"}
    assert derived_feed.delivery_options(attrs.evolve(topics, format="kafka"), None) == {}
    with pytest.raises(Failed, match="is not possible: the format kafka writes at least once"):
        derived_feed.delivery_options(attrs.evolve(topics, format="kafka"), "exactly-once")


def test_history_check_tells_what_the_checkers_tell(spark: SparkSession, tmp_path: Path) -> None:
    """For two recorded runs, `history-check` lists by run the same anomalies that the checkers find."""
    from jepsen_tests import history_check
    from jepsen_tests.checkers import version_orders
    from jepsen_tests.histories import BY_KEY

    troubled = troubled_history(1)
    sound = [
        line
        for number in range(200)
        for line in (
            json.dumps({"kind": "send", "process": "p", "invoked": number, "key": f"t-{number % 2}", "value": number,
                        "completed": number + 0.5, "outcome": "ok", "offset": number // 2, "error": ""}),
            json.dumps({"kind": "poll", "process": "c", "invoked": number + 0.6, "completed": number + 0.7, "outcome": "ok",
                        "records": {f"t-{number % 2}": [[number // 2, number]]}, "rebalanced": [], "final": False}),
        )
    ]  # fmt: skip
    (tmp_path / "sound.jsonl").write_text("\n".join(sound) + "\n")
    (tmp_path / "troubled.jsonl").write_text("\n".join(troubled.to_lines()) + "\n")
    verdict = history_check.check_runs(spark, [str(tmp_path)])
    orders = version_orders(troubled)
    expected = [anomaly for checker in BY_KEY for anomaly in checker(troubled, orders)]
    assert {file.rpartition("/")[2] for file, _ in verdict.anomalies} == {"troubled.jsonl"}
    assert sorted(str(anomaly) for _, anomaly in verdict.anomalies) == sorted(map(str, expected))
    assert verdict.operations == 400 + len(troubled.operations)
    assert verdict.keys == 5
    oks = sum(send.outcome == "ok" for send in troubled.sends())
    assert verdict.acknowledged == 200 + oks
    assert sum(map(len, verdict.by_trouble().values())) == len(expected)
