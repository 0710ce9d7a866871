"""A batch must end in the delivery mode in which it began; otherwise the sink refuses it and says what to do.

The tests call the sink's writers as Spark does: task by task, then `commit` or `abort`. A missing rule would not show
as an error, but as duplicated or hidden rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import attrs
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from odradek.client.shells.blocking import Client
from odradek.spark import sink
from odradek.spark.delivery import undecided
from odradek.spark.writing import prepared_before
from testkit.odradek_server import start_odradek
from testkit.processes import ServerProcess
from tests.kafka_jars import NO_RETENTION, TRANSACTIONS
from tests.spark.topics import Topics
from tests.spark.writing.test_sink_task import stored_committed

_SCHEMA = StructType([StructField("value", BinaryType())])
_TASKS = 3
_ROWS = 20
_EXPECTED = Counter({b"%d-%d" % (task, row): 1 for task in range(_TASKS) for row in range(_ROWS)})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A node with two-phase commit enabled."""
    directory: Path = tmp_path_factory.mktemp("modes") / "node"
    settings = {**NO_RETENTION, **TRANSACTIONS, "transaction.two.phase.commit.enable": "true"}
    made = start_odradek(directory, settings=settings)
    yield made
    made.stop()


@attrs.define
class Query:
    """A streaming query whose tasks the test runs in this process."""

    bootstrap: str
    topic: str
    monkeypatch: pytest.MonkeyPatch
    name: str = attrs.field(factory=lambda: f"q-{uuid4()}")

    def run(
        self,
        delivery: str,
        batch: int = 0,
        only: tuple[int, ...] | None = None,
        values: list[bytes] | None = None,
        **options: str,
    ) -> list[str]:
        """Run a batch in a new run of the query; return the error sentences.

        With `only`, the run dies after these tasks have reported.
        """
        monkeypatch = self.monkeypatch
        # A new process would start without cached responses.
        monkeypatch.setattr(prepared_before, "_asked", {})
        given = {
            "kafka.bootstrap.servers": self.bootstrap,
            "topic": self.topic,
            "delivery": delivery,
            **options,
        }
        writer = sink.stream_writer(given, _SCHEMA, overwrite=False)
        reports, failures = [], []
        for task in range(_TASKS) if only is None else only:
            rows = [b"%d-%d" % (task, row) for row in range(_ROWS)] if values is None else values
            context = self._context(task, batch)
            monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda found=context: found))
            try:
                reports.append(writer.write(iter([pa.record_batch({"value": pa.array(rows, pa.binary())})])))
            except RuntimeError as error:
                failures.append(str(error))
        if failures:
            writer.abort(reports, batch)
        elif only is None:
            writer.commit(reports, batch)
        return failures

    def _context(self, task: int, batch: int) -> Any:
        properties = {"sql.streaming.queryId": self.name, "streaming.sql.batchId": str(batch)}
        return SimpleNamespace(
            partitionId=lambda: task, attemptNumber=lambda: 0, getLocalProperty=properties.get
        )

    def committed(self) -> Counter[bytes | None]:
        """Return the committed values, sorted, when no transaction is open."""
        return Counter(record.value for record in stored_committed(self.bootstrap, self.topic, 0))

    def prepared(self) -> int:
        """Return the number of open transactions of the query."""
        with Client(self.bootstrap) as client:
            pattern = f"odradek-spark-2pc-{self.name}-.*"
            return len(client.admin.list_transactions(states=["Ongoing"], transactional_id_pattern=pattern))


@pytest.fixture
def query(server: ServerProcess, fresh_topic: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> Query:
    topic = Topics(server.bootstrap).create(fresh_topic("modes"), partitions=2)
    return Query(server.bootstrap, topic, monkeypatch)


def test_a_first_batch_that_exactly_once_has_begun_is_not_begun_again(query: Query) -> None:
    """A first batch began as exactly-once, and one of its tasks is missing. In two-phase mode the batch is refused."""
    assert query.run("exactly-once", only=(1, 2)) == []
    failures = query.run("two-phase")
    assert len(failures) == _TASKS
    assert all("began with delivery=exactly-once" in each for each in failures)
    assert query.run("exactly-once") == []
    assert query.committed() == _EXPECTED


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("way_out", ["two-phase", "--end"])
def test_no_other_mode_writes_beside_prepared_transactions(
    query: Query, delivery: str, way_out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """While prepared transactions are open, other modes are refused, because these would hide their rows. Each way out
    in the sentence works."""
    assert query.run("two-phase", only=(1, 2)) == []
    failures = query.run(delivery)
    command = f"odradek spark two-phase --bootstrap {query.bootstrap} --end {query.name}"
    assert len(failures) == _TASKS
    assert all(
        each.endswith(command) and "Start the query with delivery=two-phase" in each for each in failures
    )
    assert query.prepared() == 2
    if way_out == "two-phase":
        assert query.run("two-phase") == []
    else:
        assert undecided.main(command.split()[3:]) == 0, capsys.readouterr()
        assert query.run(delivery) == []
    assert query.committed() == _EXPECTED
    assert query.run(delivery, batch=1, values=[b"later"]) == []
    assert query.committed() == _EXPECTED + Counter({b"later": _TASKS})


def test_another_topic_of_decisions_is_told_by_every_task(query: Query) -> None:
    """If decisionsTopic is changed in the middle of a stream, each task refuses to write, and each row is there
    once."""
    assert query.run("exactly-once") == []
    before = query.committed()
    assert query.run("exactly-once", batch=1, only=(1, 2)) == []
    failures = query.run("exactly-once", batch=1, decisionsTopic=f"{query.topic}-decisions")
    assert len(failures) == _TASKS
    assert all("set the option decisionsTopic to that topic" in each for each in failures)
    assert query.run("exactly-once", batch=1) == []
    assert query.committed() == before + before
