"""Two-phase delivery against a real node: attempts and drivers are killed or delayed at each step, or overlap."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

import pyarrow as pa

from odradek import Producer
from odradek.client.shells.blocking import Client
from odradek.spark.delivery import pool, two_phase_driver, undecided
from odradek.spark.delivery.decisions import Decisions
from odradek.spark.delivery.pool import slot_id
from odradek.spark.delivery.task_protocol import ProgressError, RowSummary
from odradek.spark.delivery.two_phase import AttemptProtocol, DriverProtocol, sum_of
from odradek.spark.delivery.two_phase_driver import run_driver
from odradek.spark.writing.sink_plan import Delivery, SinkPlan
from odradek.spark.writing.sink_task import TaskReport
from odradek.spark.writing.two_phase_task import check_two_phase, prepare_rows
from odradek.wire.errors import ErrorCode, KafkaError
from testkit.odradek_server import start_odradek
from testkit.processes import ServerProcess
from tests.kafka_jars import NO_RETENTION, TRANSACTIONS
from tests.node_process import RunningNode
from tests.spark.delivery.dying_attempt import rows_of
from tests.spark.topics import Topics
from tests.spark.writing.test_sink_task import stored_committed

ROWS = 50
TASKS = 2
TWO_PHASE = {"transaction.two.phase.commit.enable": "true"}
ATTEMPT_STEPS = ("looked", "claimed", "written", "prepared")
DRIVER_STEPS = ("fenced", "read", "decided", "completed", "found", "proved", "swept", "finished")
POINTS = (
    "after-claimed",
    "after-prepared",
    "before-decided",
    "between-winners",
    "before-proved",
    "before-swept",
)
ALL_POINTS = (
    *(f"{when}-{step}" for step in (*ATTEMPT_STEPS, *DRIVER_STEPS) for when in ("before", "after")),
    "between-winners",
)
"""The points that are tested with --matrix."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A node with two-phase commit enabled."""
    directory: Path = tmp_path_factory.mktemp("two-phase") / "node"
    made = start_odradek(directory, settings={**NO_RETENTION, **TRANSACTIONS, **TWO_PHASE})
    with Decisions({"bootstrap.servers": made.bootstrap}) as decisions:
        decisions.make()
    yield made
    made.stop()


@attrs.define
class Query:
    """A query that writes the same rows in each task of each batch."""

    plan: SinkPlan
    name: str = attrs.field(factory=lambda: f"q-{uuid4()}")

    def attempt(
        self, batch: int, task: int = 0, rows: Iterator[pa.RecordBatch] | None = None, slot: int = 0
    ) -> TaskReport:
        """Run one attempt at a task; return its report."""
        protocol = AttemptProtocol(self.name, task, batch, adopt=self.plan.adopts)
        return prepare_rows(self.plan, protocol, slot, iter([rows_of(ROWS)]) if rows is None else rows)

    def driver(self, batch: int, reports: list[TaskReport], *, aborts: bool = False) -> DriverProtocol:
        """Make the driver of a batch with these reports of its tasks."""
        counted = [RowSummary(max(each.rows, each.rows_compared), each.row_hash) for each in reports]
        prepared = tuple(each.prepared for each in reports if each.prepared is not None)
        topics = tuple({topic for each in reports for topic in each.topics})
        return DriverProtocol(
            self.name, batch, prepared, sum_of(counted), topics=topics, aborts=aborts, adopt=self.plan.adopts
        )

    def end(self, driver: DriverProtocol) -> None:
        """Let the driver commit or abort its batch."""
        run_driver(self.plan.properties, self.plan.decisions_topic, driver)

    def run(self, batch: int) -> list[TaskReport]:
        """Run all tasks of a batch and its commit without faults; return the reports."""
        reports = [self.attempt(batch, task) for task in range(TASKS)]
        self.end(self.driver(batch, reports))
        return reports

    def check(self, batches: int) -> None:
        """Check that each row is there once for each batch and task, and that no transaction of the query is open."""
        assert self.plan.topic is not None
        bootstrap = self.plan.properties["bootstrap.servers"]
        found = Counter(record.value for record in stored_committed(bootstrap, self.plan.topic, 0))
        expected = {b"%d" % number: batches * TASKS for number in range(ROWS)}
        assert found == Counter({key: count for key, count in expected.items() if count})
        with Client(bootstrap) as client:
            open_now = client.admin.list_transactions(states=["Ongoing"])
        assert [each for each in open_now if self.name in each.transactional_id] == []


@pytest.fixture
def query(server: ServerProcess, fresh_topic: Callable[[str], str]) -> Query:
    topic = Topics(server.bootstrap).create(fresh_topic("two-phase"), partitions=2)
    properties = {"bootstrap.servers": server.bootstrap}
    return Query(SinkPlan({"value": 0}, topic, properties, None, delivery=Delivery.TWO_PHASE))


def killed(run: Callable[[], object]) -> None:
    """Call the function in a forked process, which must die of SIGKILL."""
    child = os.fork()
    if child == 0:
        try:
            run()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the process was not killed, so it did not reach the step"
    assert os.WTERMSIG(status) == signal.SIGKILL


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_at(point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process kill itself at a point."""
    when, _, step = point.partition("-")
    if point == "between-winners":
        end = two_phase_driver.end_transactions

        def one_only(core: Any, query: str, wanted: Any, **how: Any) -> Any:
            yield from end(core, query, wanted[:1], **how)
            die()

        monkeypatch.setattr(two_phase_driver, "end_transactions", one_only)
        return
    protocol = AttemptProtocol if step in ATTEMPT_STEPS else DriverProtocol
    function = getattr(protocol, step)

    def mortal(*given: Any) -> None:
        if when == "after":
            function(*given)
        die()

    monkeypatch.setattr(protocol, step, mortal)


def test_a_run_that_dies_anywhere_writes_once(
    query: Query, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each batch an attempt or driver is killed at a step, and the next run completes it. Each row is there once."""
    points = ALL_POINTS if pytestconfig.getoption("--matrix") else POINTS
    for batch, point in enumerate(points):

        def run(batch: int = batch, point: str = point) -> None:
            dies_at(point, monkeypatch)
            query.run(batch)

        killed(run)
        query.run(batch)
        query.check(batch + 1)


def test_twins_a_zombie_and_a_task_without_rows(query: Query) -> None:
    """If several attempts at a task overlap, the reported one is committed, and others are refused. An attempt at a
    decided batch only counts its rows."""

    def slow_rows() -> Iterator[pa.RecordBatch]:
        yield rows_of(ROWS)
        reports = [query.attempt(0, task, slot=1) for task in range(TASKS)]
        query.attempt(0, slot=2)
        query.end(query.driver(0, [*reports, query.attempt(0, 7, iter([]))]))
        yield rows_of(ROWS)

    with pytest.raises(RuntimeError, match="task 0 of q-"):
        query.attempt(0, rows=slow_rows())
    query.check(1)
    late = query.attempt(0)
    assert (late.rows, late.rows_compared, late.prepared) == (0, ROWS, None)
    query.run(1)
    query.check(2)


def test_a_driver_that_sleeps_ends_nothing_of_the_next_batch(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a driver is delayed, another driver completes the batch and begins the next. The delayed driver is refused
    and aborts nothing."""
    reports = [query.attempt(0, task) for task in range(TASKS)]
    sleeper, found = query.driver(0, reports), DriverProtocol.found
    later: list[TaskReport] = []

    def sleeping(self: DriverProtocol, listed: Any) -> None:
        if self is sleeper and not later:
            query.run(0)
            later.extend(query.attempt(1, task) for task in range(TASKS))
        found(self, listed)

    monkeypatch.setattr(DriverProtocol, "found", sleeping)
    with pytest.raises(RuntimeError, match="another driver of q-"):
        query.end(sleeper)
    # Spark aborts after a failed commit. This changes nothing, as the batch is decided.
    query.end(query.driver(0, reports, aborts=True))
    query.end(query.driver(1, later))
    query.check(2)


def test_an_attempt_waits_for_the_end_of_the_batch_before(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt reads an outdated record, which says that the previous batch is incomplete. It reads again instead of
    failing."""
    reports = [query.attempt(0, task) for task in range(TASKS)]

    def run() -> None:
        dies_at("before-swept", monkeypatch)
        query.end(query.driver(0, reports))

    killed(run)
    last, seen = Decisions.last, list[bool]()

    def late(self: Decisions, name: str, batch: int) -> Any:
        found = last(self, name, batch)
        if batch == 1:
            seen.append(found is not None and found.is_complete)
            if len(seen) == 1:
                query.end(query.driver(0, reports))
        return found

    monkeypatch.setattr(Decisions, "last", late)
    later = [query.attempt(1, task) for task in range(TASKS)]
    assert seen[:2] == [False, True]
    query.end(query.driver(1, later))
    query.check(2)


def test_an_abort_drops_what_it_was_told_and_overrides_no_decision(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a decision, an abort aborts the reported transactions. If a decision exists, it commits the decided
    ones."""
    reports = [query.attempt(0, task) for task in range(TASKS)]
    query.end(query.driver(0, reports, aborts=True))
    query.check(0)
    reports = [query.attempt(0, task) for task in range(TASKS)]

    def run() -> None:
        dies_at("before-decided", monkeypatch)
        query.end(query.driver(0, reports))

    killed(run)
    query.end(query.driver(0, reports, aborts=True))
    query.check(1)
    query.run(0)
    query.check(1)


def test_progress_that_contradicts(query: Query) -> None:
    """An older batch, a gap or other rows fail with one sentence. With `adoptCheckpoint` the existing rows are
    accepted."""
    query.run(0)
    query.run(1)
    with pytest.raises(ProgressError, match="the checkpoint is older than the topic"):
        query.attempt(0)
    with pytest.raises(ProgressError, match="adoptCheckpoint"):
        query.attempt(3)
    reports = [query.attempt(1, 0), query.attempt(1, 1, iter([rows_of(ROWS + 1)]))]
    with pytest.raises(
        ProgressError, match=f"was decided with {2 * ROWS} rows, and this run has {2 * ROWS + 1}"
    ):
        query.end(query.driver(1, reports))
    query.plan = attrs.evolve(query.plan, adopts=True)
    query.end(query.driver(1, reports))
    query.check(2)


def test_a_winner_that_others_touch(query: Query, server: ServerProcess) -> None:
    """A prepared transaction that another producer has resumed is committed. If an operator has aborted the
    transaction, the error reports lost rows."""
    reports = [query.attempt(0, task) for task in range(TASKS)]
    keys = {**query.plan.properties, **TWO_PHASE, "transactional.id": slot_id(query.name, 0, 0)}
    with Producer(keys) as other:
        assert other.resume() is not None
    query.end(query.driver(0, reports))
    query.check(1)
    reports = [query.attempt(1, task) for task in range(TASKS)]
    with Client(server.bootstrap) as client:
        client.admin.fence_producer(slot_id(query.name, 1, 0))
    with pytest.raises(RuntimeError, match=r"another program aborted it: rows of task 1 of q-.* are lost"):
        query.end(query.driver(1, reports))


def test_a_lost_answer_is_no_lost_winner(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """A winner is committed, but the response is lost, and another producer reuses the winner's slot. The batch still
    succeeds."""
    keys = {**query.plan.properties, **TWO_PHASE, "transactional.id": slot_id(query.name, 0, 0)}
    known, others = pool.error_code, list[Producer]()

    def lost_at_first(number: int) -> ErrorCode:
        if others:
            return known(number)
        assert number == ErrorCode.NONE
        others.append(Producer(keys))
        assert others[0].resume() is None
        return ErrorCode.COORDINATOR_NOT_AVAILABLE

    reports = [query.attempt(0, task) for task in range(TASKS)]
    monkeypatch.setattr(pool, "error_code", lost_at_first)
    query.end(query.driver(0, reports))
    others[0].close(1.0)
    query.check(1)


def test_a_node_that_goes_while_transactions_are_listed(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a broker disappears while transactions are listed, the list is requested again. The batch completes."""
    known, failures = pool.list_transactions, list[str]()

    def without_a_node(core: Any, **how: Any) -> Any:
        if not failures:
            failures.append("there is no broker 2")
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, failures[0])
        return (yield from known(core, **how))

    query.attempt(0, slot=1)
    monkeypatch.setattr(pool, "list_transactions", without_a_node)
    query.run(0)
    assert failures
    query.check(1)


def test_a_topic_made_anew(query: Query, server: ServerProcess) -> None:
    """If the topic was deleted and created again, the query fails with one sentence. It continues once the new topic is
    adopted."""
    topics, topic = Topics(server.bootstrap), query.plan.topic
    assert topic is not None
    query.run(0)
    topics.delete(topic)
    topics.create(topic, partitions=2)
    with pytest.raises(
        ProgressError, match=f"the topic '{topic}' was deleted and created again since batch 0 of q-"
    ):
        query.attempt(1)
    query.plan = attrs.evolve(query.plan, adopts=True)
    query.run(1)
    query.check(1)


def test_brokers_without_two_phases(node: RunningNode) -> None:
    """Without two-phase commit on the brokers, the check fails with a message that names KIP-939 and the other
    deliveries."""
    plan = SinkPlan({"value": 0}, "t", {"bootstrap.servers": node.bootstrap}, None, look_up_ms=60_000)
    with Decisions({"bootstrap.servers": node.bootstrap}) as decisions:
        decisions.make()
        with pytest.raises(
            ValueError, match=r"needs brokers with two-phase commit \(KIP-939\).*delivery=exactly-once"
        ):
            check_two_phase(plan, decisions)


@pytest.mark.java
def test_apache_kafka_has_no_two_phases(apache_kafka: ServerProcess) -> None:
    """Kafka 4.3 has no two-phase commit for clients, so the same message appears."""
    plan = SinkPlan({"value": 0}, "t", {"bootstrap.servers": apache_kafka.bootstrap}, None, look_up_ms=60_000)
    with Decisions({"bootstrap.servers": apache_kafka.bootstrap}) as decisions:
        decisions.make()
        with pytest.raises(
            ValueError, match=r"needs brokers with two-phase commit \(KIP-939\).*delivery=exactly-once"
        ):
            check_two_phase(plan, decisions)


def test_what_an_abandoned_query_leaves_is_listed_and_ended(
    query: Query, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tool lists queries with open transactions. With --end it commits decided ones and aborts the others."""
    where = ["--bootstrap", query.plan.properties["bootstrap.servers"]]
    reports = [query.attempt(0, task) for task in range(TASKS)]
    query.attempt(0, slot=1)

    def run() -> None:
        dies_at("between-winners", monkeypatch)
        query.end(query.driver(0, reports))

    killed(run)
    assert undecided.main(where) == 0
    [line] = [each for each in capsys.readouterr().out.splitlines() if each.startswith(query.name)]
    assert line.split()[1] == "2"
    assert line.endswith("batch 0, not complete")
    assert undecided.main([*where, "--end", query.name]) == 0
    query.check(1)
    query.attempt(1)
    assert undecided.main([*where, "--end", query.name]) == 0
    query.check(1)
    capsys.readouterr()
    assert undecided.main(where) == 0
    assert query.name not in capsys.readouterr().out
    assert undecided.main([*where, "--end", query.name]) == 1
    assert undecided.main([*where, "--end", "mistyped"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("has no open transaction: leave out --end") == 2
    query.check(1)
    assert undecided.main(["--bootstrap", "127.0.0.1:9", "--option", "kafka.max.block.ms=300"]) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err


def test_a_question_takes_no_longer_than_max_block() -> None:
    """The sink's `kafka.max.block.ms` limits each call, including those of the admin client."""
    with Decisions({"bootstrap.servers": "127.0.0.1:9", "max.block.ms": "300"}) as decisions:
        assert decisions.timeout == 0.3
        assert decisions.client.timeout == 0.3
        assert decisions.client.core.config.api_timeout == 0.3
