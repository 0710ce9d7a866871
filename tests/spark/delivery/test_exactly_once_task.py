"""Exactly-once tasks as processes that are killed at each step, against a real node."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from uuid import uuid4

import attrs
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

import pyarrow as pa

from odradek import Admin, Producer
from odradek.client.shells.blocking import Client
from odradek.spark.delivery.batch_driver import drop_open
from odradek.spark.delivery.decisions import Decisions, new_topic
from odradek.spark.delivery.decisions_topic import DECISIONS_TOPIC
from odradek.spark.delivery.markers import marker_key, marker_value, partition_of
from odradek.spark.delivery.pool import transactional_id
from odradek.spark.delivery.task_protocol import Marker, ProgressError, RowSummary, Step, TaskProtocol
from odradek.spark.writing.sink_task import TaskReport
from odradek.spark.writing.transactional_task import write_once
from odradek.wire.errors import KafkaError
from tests.docs.markdown import ROOT
from tests.node_process import RunningNode
from tests.spark.delivery.dying_attempt import plan_of, rows_of
from tests.spark.topics import Topics
from tests.spark.writing.test_sink_task import stored_committed

ROWS = 400
POINTS = ("before-fenced", "after-marker_read", "before-written", "after-written", "before-committed")
ALL_POINTS = tuple(
    f"{when}-{name}"
    for name in ("fenced", "end_taken", "marker_read", "written", "committed")
    for when in ("before", "after")
)
"""The points that are tested with --matrix."""


@pytest.fixture
def topic(node: RunningNode, fresh_topic: Callable[[str], str]) -> str:
    with Decisions({"bootstrap.servers": node.bootstrap}) as decisions:
        decisions.make()
    return Topics(node.bootstrap).create(fresh_topic("once"), partitions=2)


def attempt(
    bootstrap: str, topic: str, query: str, batch: int, rows: int = ROWS, task: int = 0
) -> TaskReport:
    """Run one attempt that is not killed; return its report."""
    return write_once(plan_of(bootstrap, topic), TaskProtocol(query, task, batch), iter([rows_of(rows)]))


def test_a_task_that_dies_anywhere_writes_once(
    node: RunningNode, topic: str, pytestconfig: pytest.Config
) -> None:
    """For each batch, one attempt is killed at a step and the next attempt completes the batch. The topic has each row
    once per batch."""
    query = f"q-{uuid4()}"
    points = ALL_POINTS if pytestconfig.getoption("--matrix") else POINTS
    for batch, point in enumerate(points):
        arguments = [node.bootstrap, topic, query, str(batch), str(ROWS), point]
        died = subprocess.run(
            [sys.executable, "-m", "tests.spark.delivery.dying_attempt", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert died.returncode == -signal.SIGKILL, died.stderr
        report = attempt(node.bootstrap, topic, query, batch)
        assert (report.rows_compared == ROWS) is point.endswith("committed")
        stored_committed(node.bootstrap, topic, ROWS * (batch + 1))
    found = Counter(record.value for record in stored_committed(node.bootstrap, topic, ROWS * len(points)))
    assert found == Counter({b"%d" % number: len(points) for number in range(ROWS)})


def test_a_marker_behind_the_open_transaction_of_another_task(node: RunningNode, topic: str) -> None:
    """Another task's open transaction keeps the last stable offset below this task's marker. The marker is still
    found."""
    query = f"q-{uuid4()}"
    partition = partition_of(query, 8)
    with Producer(
        bootstrap_servers=node.bootstrap,
        transactional_id=transactional_id(query, 1),
        transaction_timeout_ms=60_000,
    ) as other:
        other.init_transactions()
        other.begin_transaction()
        value = marker_value(Marker(0, RowSummary(1, 1)))
        other.send(DECISIONS_TOPIC, key=marker_key(query, 1), value=value, partition=partition).result(60)
        assert attempt(node.bootstrap, topic, query, 0).rows == ROWS
        assert attempt(node.bootstrap, topic, query, 0).rows_compared == ROWS
        with Decisions({"bootstrap.servers": node.bootstrap}) as decisions:
            key, end = decisions.end_of(query)
            log = decisions.read(query, key, end)
        assert (set(log.markers), log.is_undecided(1), log.is_undecided(0)) == ({0}, True, False)
        other.abort_transaction()
    assert attempt(node.bootstrap, topic, query, 0, task=1).rows == ROWS


def test_a_late_attempt_writes_nothing(node: RunningNode, topic: str) -> None:
    """An attempt has sent rows when another attempt at the task begins. It then fails, and its rows are aborted."""
    query = f"q-{uuid4()}"

    def slow_rows() -> Iterator[pa.RecordBatch]:
        yield rows_of(ROWS)
        assert attempt(node.bootstrap, topic, query, 0).rows == ROWS
        yield rows_of(ROWS)

    with pytest.raises(RuntimeError, match="task 0 of q-"):
        write_once(plan_of(node.bootstrap, topic), TaskProtocol(query, 0, 0), slow_rows())
    assert len(stored_committed(node.bootstrap, topic, ROWS)) == ROWS


def test_progress_that_contradicts(node: RunningNode, topic: str) -> None:
    """An attempt fails and adds no rows if its rows differ, its batch is older, or a batch was skipped."""
    query = f"q-{uuid4()}"
    attempt(node.bootstrap, topic, query, 0)
    attempt(node.bootstrap, topic, query, 1)
    for batch, rows, words in (
        (1, ROWS + 1, "this attempt has 401"),
        (0, ROWS, "older"),
        (3, ROWS, "adoptCheckpoint"),
    ):
        with pytest.raises(ProgressError, match=words):
            attempt(node.bootstrap, topic, query, batch, rows)
    assert len(stored_committed(node.bootstrap, topic, 2 * ROWS)) == 2 * ROWS
    assert TaskProtocol(query, 0, 2).step is Step.FENCE


@pytest.mark.parametrize(
    "consecutive", [True, False], ids=["checkpoint from a backup", "txnVersion goes back"]
)
def test_an_old_batch_with_more_tasks_writes_nothing(
    node: RunningNode, topic: str, consecutive: bool
) -> None:
    """A batch replanned from a backup may have more tasks. All of its attempts are refused, even those without a
    marker."""
    query, plan = f"q-{uuid4()}", plan_of(node.bootstrap, topic)
    for batch in range(3):
        attempt(node.bootstrap, topic, query, batch)
    for task in (0, 1):
        protocol = TaskProtocol(query, task, 1, consecutive=consecutive)
        with pytest.raises(ProgressError, match=f"the topic already has batch 2 of {query}"):
            write_once(plan, protocol, iter([rows_of(ROWS)]))
    assert len(stored_committed(node.bootstrap, topic, 3 * ROWS)) == 3 * ROWS


def test_a_topic_made_anew_ends_the_query(node: RunningNode, topic: str) -> None:
    """If the topic was deleted and created again, an attempt fails with one sentence. It succeeds if it adopts the new
    topic."""
    query, topics = f"q-{uuid4()}", Topics(node.bootstrap)
    attempt(node.bootstrap, topic, query, 0)
    topics.delete(topic)
    topics.create(topic, partitions=2)
    with pytest.raises(
        ProgressError, match=f"the topic '{topic}' was deleted and created again since batch 0 of q-"
    ):
        attempt(node.bootstrap, topic, query, 1)
    assert stored_committed(node.bootstrap, topic, 0) == []
    plan = attrs.evolve(plan_of(node.bootstrap, topic), adopts=True)
    write_once(plan, TaskProtocol(query, 0, 1, adopt=True), iter([rows_of(ROWS)]))
    assert attempt(node.bootstrap, topic, query, 2).rows == ROWS
    assert len(stored_committed(node.bootstrap, topic, 2 * ROWS)) == 2 * ROWS


@pytest.mark.parametrize("goes_on", [False, True], ids=["learns at its end", "learns while it writes"])
def test_a_task_that_takes_too_long(node: RunningNode, topic: str, goes_on: bool) -> None:
    """A task that takes longer than its transaction timeout fails. The error says what to set for this batch and for
    the next."""
    plan = plan_of(node.bootstrap, topic)
    plan = attrs.evolve(plan, properties={**plan.properties, "transaction.timeout.ms": "200"})

    def slow_rows() -> Iterator[pa.RecordBatch]:
        yield rows_of(ROWS)
        # These rows exceed a batch, so the first rows are sent and open the transaction.
        large = pa.record_batch({"value": pa.array([b"x" * 20_000] * 100, pa.binary())})
        yield large
        with Client(node.bootstrap) as client:
            name = transactional_id(query, 0)
            while client.admin.describe_transactions([name])[0].state != "CompleteAbort":
                time.sleep(0.02)
        while goes_on:
            yield large
        yield rows_of(ROWS)

    query = f"q-{uuid4()}"
    sentence = r"Raise kafka\.transaction\.timeout\.ms, .* until batch 0 has ended .* For the next batch"
    with pytest.raises(RuntimeError, match=sentence):
        write_once(plan, TaskProtocol(query, 0, 0), slow_rows())
    assert stored_committed(node.bootstrap, topic, 0) == []


def test_a_decisions_topic_that_forgets_is_refused(
    node: RunningNode, fresh_topic: Callable[[str], str]
) -> None:
    """A decisions topic that is not compacted would lose markers. It is refused with the setting to change."""
    name = Topics(node.bootstrap).create(fresh_topic("decisions"))
    with (
        Decisions({"bootstrap.servers": node.bootstrap}, name) as decisions,
        pytest.raises(ValueError, match=r"set cleanup\.policy=compact"),
    ):
        decisions.make()
    with Admin(bootstrap_servers=node.bootstrap) as admin:
        assert admin.delete_topics([name])[0][1] is None


def test_progress_has_three_replicas_where_it_can(
    node: RunningNode, fresh_topic: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster of three brokers, the sink creates the decisions topic with three replicas. With one broker it uses
    the default."""
    name = fresh_topic("decisions")
    with Decisions({"bootstrap.servers": node.bootstrap}, name) as decisions:
        three = SimpleNamespace(topics={}, brokers={1: None, 2: None, 3: None})
        with monkeypatch.context() as seen:
            seen.setattr(decisions.client, "metadata", lambda _: three)
            with pytest.raises(KafkaError, match="INVALID_REPLICATION_FACTOR"):
                decisions.make()
        decisions.make()
        assert name in decisions.client.metadata([name]).topics


def test_progress_outlives_its_leader() -> None:
    """The decisions topic forbids unclean elections and, with three brokers, requires two in-sync replicas. A lost
    marker would duplicate rows."""
    for brokers, in_sync in ((1, None), (2, None), (3, "2"), (9, "2")):
        made = new_topic("d", brokers)
        assert made.configs["unclean.leader.election.enable"] == "false"
        assert made.configs.get("min.insync.replicas") == in_sync


@pytest.mark.parametrize("has_marker", [False, True])
@pytest.mark.parametrize("beside", ["nobody", "another run"])
def test_a_failed_batch_ends_transactions_without_a_report(
    node: RunningNode, topic: str, has_marker: bool, beside: str
) -> None:
    """Spark kills a task, or drops its report, because another task has failed. Its open transaction would hold up
    readers until its timeout, so the driver ends it. A transaction of another run stays."""
    query, run = f"q-{uuid4()}", "this run"
    partition = partition_of(query, 8)
    properties = {"bootstrap.servers": node.bootstrap}

    def begin(producer: Producer, task: int, by: str) -> None:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, value=b"open", partition=task % 2).result(60)
        if by:
            value = marker_value(Marker(0, RowSummary(1, 1), run=by))
            producer.send(
                DECISIONS_TOPIC, key=marker_key(query, task), value=value, partition=partition
            ).result(60)

    def opened(task: int) -> Producer:
        return Producer(
            bootstrap_servers=node.bootstrap,
            transaction_timeout_ms=60_000,
            transactional_id=transactional_id(query, task),
        )

    with opened(1) as killed, opened(2) as living, Admin(bootstrap_servers=node.bootstrap) as admin:
        begin(killed, 1, run if has_marker else "")
        if beside == "another run":
            begin(living, 2, "another run")
        drop_open(properties, DECISIONS_TOPIC, query, 0, run, [])
        states = {
            each: admin.describe_transactions([transactional_id(query, each)])[0].state for each in (1, 2)
        }
        # Beside another run, a transaction without a marker may be of either run.
        ends = has_marker or beside == "nobody"
        assert states[1] == ("Empty" if ends else "Ongoing")
        assert beside == "nobody" or states[2] == "Ongoing"
        if ends and beside == "nobody":
            assert stored_committed(node.bootstrap, topic, 0) == []
