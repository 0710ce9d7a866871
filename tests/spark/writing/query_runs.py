"""Queries whose tasks a test runs in its own process, through the sink's writers, as Spark does: task by task, then
`commit` or `abort`. A run may die after some of its tasks, and the next run may have other options or another plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import attrs
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from odradek.client.shells.blocking import Client
from odradek.spark import sink
from testkit.odradek_server import start_odradek
from testkit.processes import ServerProcess
from tests.kafka_jars import NO_RETENTION, TRANSACTIONS
from tests.spark.topics import Topics
from tests.spark.writing.test_sink_task import stored_committed

__all__ = ["EXPECTED", "FINER", "ROWS", "TASKS", "Query", "query", "server"]

_SCHEMA = StructType([StructField("value", BinaryType())])
TASKS = 3
_ROWS_OF_A_TASK = 20
ROWS = [[b"%d-%d" % (task, row) for row in range(_ROWS_OF_A_TASK)] for task in range(TASKS)]
"""The rows of a batch, by task."""
FINER = [part[begin : begin + 5] for part in ROWS for begin in range(0, _ROWS_OF_A_TASK, 5)]
"""The same rows in more tasks."""
EXPECTED = Counter(value for part in ROWS for value in part)


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
    """A query with one topic. It is a stream, or a job if its options have `txnAppId`."""

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
        rows: Sequence[Sequence[bytes]] = ROWS,
        commits: bool = True,
        **options: str,
    ) -> list[str]:
        """Run a batch in a new run of the query, with `rows` by task, or with `values` for each task; return the
        error sentences.

        With `only`, the run dies after these tasks have reported. Without `commits` it dies before its driver commits.
        """
        is_job = "txnAppId" in options
        writer: Any
        if is_job:
            writer = self.writer(delivery, txnVersion=str(batch), **options)
        else:
            writer = self.stream_writer(delivery, **options)
        number = () if is_job else (batch,)
        reports, failures = [], []
        for task in range(len(rows)) if only is None else only:
            try:
                reports.append(self.write(writer, task, rows[task] if values is None else values, batch))
            except RuntimeError as error:
                failures.append(str(error))
        if only is None and not failures and commits:
            try:
                writer.commit(reports, *number)
            except RuntimeError as error:
                failures.append(str(error))
        if failures:
            writer.abort(reports, *number)
        return failures

    def writer(self, delivery: str, **options: str) -> Any:
        """Return the writer of a batch job."""
        return sink.batch_writer(self._options(delivery, options), _SCHEMA, overwrite=False)

    def stream_writer(self, delivery: str, **options: str) -> Any:
        """Return the writer of a new run of the stream."""
        return sink.stream_writer(self._options(delivery, options), _SCHEMA, overwrite=False)

    def write(self, writer: Any, task: int, values: Sequence[bytes], batch: int = 0) -> Any:
        """Run one task; return its report."""
        context = self._context(task, batch)
        self.monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
        return writer.write(iter([pa.record_batch({"value": pa.array(values, pa.binary())})]))

    def _options(self, delivery: str, options: Mapping[str, str]) -> dict[str, str]:
        where = {"kafka.bootstrap.servers": self.bootstrap, "topic": self.topic, "delivery": delivery}
        return {**where, **options}

    def _context(self, task: int, batch: int) -> Any:
        properties = {"sql.streaming.queryId": self.name, "streaming.sql.batchId": str(batch)}
        return SimpleNamespace(
            partitionId=lambda: task, attemptNumber=lambda: 0, getLocalProperty=properties.get
        )

    def committed(self, topic: str | None = None) -> Counter[bytes | None]:
        """Return the committed values, sorted, when no transaction is open."""
        return Counter(record.value for record in stored_committed(self.bootstrap, topic or self.topic, 0))

    def prepared(self) -> int:
        """Return the number of open transactions of the query."""
        with Client(self.bootstrap) as client:
            pattern = f"odradek-spark-(2pc-)?{self.name}-.*"
            return len(client.admin.list_transactions(states=["Ongoing"], transactional_id_pattern=pattern))


@pytest.fixture
def query(server: ServerProcess, fresh_topic: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> Query:
    """A query with a new topic."""
    topic = Topics(server.bootstrap).create(fresh_topic("modes"), partitions=2)
    return Query(server.bootstrap, topic, monkeypatch)
