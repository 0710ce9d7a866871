"""Whatever a user changes between a crash and a restart, each row is there once, or the batch is refused.

A refusal adds nothing, and leaves a way to end the batch.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from odradek.client.shells.blocking import Client
from odradek.spark.delivery import batch_driver
from odradek.spark.delivery.decisions import Decisions
from odradek.spark.delivery.markers import completion_key
from odradek.spark.writing.sink_task import SinkTask
from tests.spark.topics import Topics
from tests.spark.writing.query_runs import EXPECTED, FINER, ROWS, TASKS, Query, query, server
from tests.spark.writing.test_sink_task import stored_committed

__all__ = ["query", "server"]
FEWER = [[*ROWS[0], *ROWS[1]], ROWS[2]]
OTHERS = [part[::2] for part in ROWS]


@pytest.mark.parametrize("batch", [0, 1], ids=["first batch", "later batch"])
@pytest.mark.parametrize("rows", [FINER, FEWER, OTHERS], ids=["more tasks", "fewer tasks", "other rows"])
@pytest.mark.parametrize("adopt", ["false", "true"])
def test_a_begun_batch_with_another_plan_adds_nothing(
    query: Query, batch: int, rows: list[list[bytes]], adopt: str
) -> None:
    """Two of three tasks have committed, and the next run has other tasks: it is refused and adds no row. With the
    first plan the batch ends."""
    if batch:
        assert query.run("exactly-once", rows=[[b"before"], [], []]) == []
    assert query.run("exactly-once", batch, only=(1, 2)) == []
    before = query.committed()
    failures = query.run("exactly-once", batch, rows=rows, adoptCheckpoint=adopt)
    assert failures
    assert all(f"odradek spark finish {query.name}" in each for each in failures)
    assert (query.committed(), query.prepared()) == (before, 0)
    assert query.run("exactly-once", batch) == []
    assert query.committed() == EXPECTED + Counter([b"before"] * batch)


def test_a_begun_batch_with_the_same_plan_becomes_visible_when_all_tasks_have_ended(query: Query) -> None:
    """A batch that an earlier run has begun is ended by the driver: it commits what the tasks hold."""
    assert query.run("exactly-once", only=(1,)) == []
    assert query.run("exactly-once", commits=False) == []
    assert query.prepared() == 2
    assert query.run("exactly-once") == []
    assert (query.committed(), query.prepared()) == (EXPECTED, 0)


def test_a_held_transaction_that_was_aborted_is_not_taken_for_committed(query: Query) -> None:
    """A second attempt at a task aborts what the first one holds. The driver then refuses to finish the batch, and
    the next run ends it."""
    assert query.run("exactly-once", only=(1,)) == []
    writer = query.stream_writer("exactly-once")
    reports = [query.write(writer, task, part) for task, part in enumerate(ROWS)]
    query.write(writer, 0, ROWS[0])
    with pytest.raises(RuntimeError, match=r"the transaction of task 0 of q-.* was aborted before all tasks"):
        writer.commit(reports, 0)
    writer.abort(reports, 0)
    assert query.run("exactly-once") == []
    assert (query.committed(), query.prepared()) == (EXPECTED, 0)
    assert query.run("exactly-once", rows=FINER) == []


def test_a_run_that_has_begun_the_batch_meanwhile_is_seen_before_the_commit(query: Query) -> None:
    """Another run commits a task while an attempt sends its rows. The attempt leaves its transaction to its driver. It
    has asked for the end of the progress only once."""
    ends: list[str] = []
    send_rest, end_of = SinkTask.send_rest, Decisions.end_of

    def overtaken(task: SinkTask) -> None:
        patched.undo()
        assert query.run("exactly-once", 1, only=(1,)) == []
        send_rest(task)
        query.monkeypatch.setattr(Decisions, "end_of", counted)

    def counted(decisions: Decisions, name: str) -> Any:
        ends.append(name)
        return end_of(decisions, name)

    assert query.run("exactly-once") == []
    writer = query.stream_writer("exactly-once")
    with query.monkeypatch.context() as patched:
        patched.setattr(SinkTask, "send_rest", overtaken)
        first = query.write(writer, 0, ROWS[0], 1)
    assert (first.held is not None, ends) == (True, [])
    reports = [first, *(query.write(writer, task, ROWS[task], 1) for task in range(1, TASKS))]
    assert len(ends) == TASKS - 1
    writer.commit(reports, 1)
    assert (query.committed(), query.prepared()) == (EXPECTED + EXPECTED, 0)


@pytest.mark.parametrize("delivery", ["exactly-once", "two-phase"])
@pytest.mark.parametrize("again", ["exactly-once", "two-phase"])
@pytest.mark.parametrize("app", [{}, {"txnAppId": "app"}], ids=["stream", "job"])
def test_a_finished_batch_is_never_written_again(
    query: Query, delivery: str, again: str, app: dict[str, str]
) -> None:
    """A finished batch runs again with any number of tasks, in either mode: it writes nothing. Other rows are refused,
    unless `adoptCheckpoint` keeps those that are there."""
    if app:
        app = {"txnAppId": query.name}
    assert query.run(delivery, **app) == []
    for rows in (ROWS, FINER, FEWER):
        assert query.run(again, rows=rows, **app) == []
    [failure] = query.run(again, rows=OTHERS, **app)
    assert "adoptCheckpoint=true" in failure
    assert query.run(again, rows=OTHERS, adoptCheckpoint="true", **app) == []
    assert (query.committed(), query.prepared()) == (EXPECTED, 0)
    assert query.run(again, 1, rows=[[b"next"]], **app) == []
    assert query.committed() == EXPECTED + Counter([b"next"])


def test_at_least_once_does_not_write_what_another_mode_has_committed(query: Query) -> None:
    """At-least-once delivery is refused for a batch that has begun or is finished in another mode, and for an older
    one. It may write the next batch."""
    assert query.run("exactly-once", only=(1, 2)) == []
    failures = query.run("at-least-once")
    assert len(failures) == TASKS
    assert all("end the batch with the delivery with which it began" in each for each in failures)
    assert query.run("exactly-once") == []
    assert len(query.run("at-least-once")) == TASKS
    assert query.run("exactly-once", 1, rows=[[b"next"]]) == []
    assert all("the checkpoint is older" in each for each in query.run("at-least-once"))
    assert query.committed() == EXPECTED + Counter([b"next"])
    assert query.run("at-least-once", 2, rows=[[b"last"]]) == []
    assert query.committed() == EXPECTED + Counter([b"next", b"last"])


@pytest.mark.parametrize("delivery", ["exactly-once", "two-phase"])
@pytest.mark.parametrize("adopt", ["false", "true"])
@pytest.mark.parametrize("lost", [False, True], ids=["another topic", "made anew"])
def test_a_query_without_its_progress_writes_nothing(
    query: Query, delivery: str, adopt: str, lost: bool
) -> None:
    """The first batch has begun or ended, and its progress is in another decisionsTopic, or lost. Each task refuses to
    write."""
    decisions, other = f"{query.topic}-decisions", f"{query.topic}-others"
    only = (1, 2) if delivery == "exactly-once" else None
    assert query.run(delivery, only=only, decisionsTopic=decisions) == []
    before = query.committed()
    if lost:
        Topics(query.bootstrap).delete(decisions)
        other = decisions
    failures = query.run(delivery, decisionsTopic=other, adoptCheckpoint=adopt)
    assert len(failures) >= TASKS - 1
    assert all(f"odradek spark finish {query.name} --decisions-topic {other}" in each for each in failures)
    assert query.committed() == before


def test_another_topic_in_the_middle_of_a_batch_is_refused(query: Query) -> None:
    """A batch that has begun with one topic is not ended with another."""
    other = Topics(query.bootstrap).create(f"{query.topic}-other", partitions=2)
    assert query.run("exactly-once", only=(1, 2)) == []
    first, query.topic = query.topic, other
    failures = query.run("exactly-once")
    assert len(failures) == TASKS
    assert all(f"began with the topic '{first}'" in each for each in failures)
    query.topic = first
    assert query.run("exactly-once") == []
    query.topic = other
    assert query.run("exactly-once", 1) == []
    assert query.committed(first) == query.committed(other) == EXPECTED


def test_a_job_is_not_passed_over_when_it_has_begun(query: Query) -> None:
    """A version that has begun must end before the next one is written, because its other rows would be missing."""
    app = {"txnAppId": query.name}
    assert query.run("exactly-once", 1, only=(0,), **app) == []
    for delivery in ("exactly-once", "two-phase"):
        failures = query.run(delivery, 2, rows=[[b"next"]], **app)
        assert all(
            "has begun and was not finished (20 rows of task 0 are committed)" in each for each in failures
        )
        assert failures
    assert query.run("exactly-once", 1, **app) == []
    assert query.run("two-phase", 2, rows=[[b"next"]], **app) == []
    assert query.committed() == EXPECTED + Counter([b"next"])


def test_an_empty_task_makes_no_transaction(query: Query) -> None:
    """Only task 0 takes a transactional id without rows. A repetition with the same tasks succeeds."""
    rows: list[list[bytes]] = [[], [], [b"x"], []]
    assert query.run("exactly-once", rows=rows, only=(0, 1, 2)) == []
    assert query.run("exactly-once", rows=rows) == []
    assert query.run("exactly-once", 1, rows=rows) == []
    assert query.committed() == {b"x": 2}
    with Client(query.bootstrap) as client:
        pattern = f"odradek-spark-{query.name}-.*"
        found = [
            each.transactional_id for each in client.admin.list_transactions(transactional_id_pattern=pattern)
        ]
    assert sorted(found) == [f"odradek-spark-{query.name}-{who}" for who in (0, 2, "driver")]


@pytest.mark.parametrize("delivery", ["exactly-once", "two-phase"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_job_without_a_name_leaves_no_progress_behind(query: Query, fails: bool, delivery: str) -> None:
    """A plain job reads the decisions topic from where it ended when the job began, and deletes its markers or its
    decision. A late attempt at its tasks is refused."""
    decisions_topic = f"{query.topic}-decisions"
    # This record is in the only partition that a topic of the test's own has.
    Topics(query.bootstrap).create(decisions_topic, partitions=1, **{"cleanup.policy": "compact"})
    assert query.run("exactly-once", decisionsTopic=decisions_topic) == []
    writer = query.writer(delivery, decisionsTopic=decisions_topic)
    assert writer._plan.progress_begin > 0
    reports = [query.write(writer, task, part) for task, part in enumerate(ROWS)]
    if fails:
        writer.abort(reports)
    else:
        writer.commit(reports)
    with pytest.raises(RuntimeError, match="has ended, so this late attempt at task 0 ends"):
        query.write(writer, 0, ROWS[0])
    is_dropped = fails and delivery == "two-phase"
    assert query.committed() == EXPECTED + (Counter() if is_dropped else EXPECTED)
    with Decisions({"bootstrap.servers": query.bootstrap}, decisions_topic) as decisions:
        key, end = decisions.end_of(writer._plan.app_id)
        log = decisions.read(writer._plan.app_id, key, end)
    assert log.is_empty
    assert log.has_tombstones


def test_a_driver_that_was_suspended_writes_no_late_completion(query: Query) -> None:
    """A driver stops before it writes its completion, and the next run goes on for two batches. The late write is
    refused, so the last completion in the topic is that of the last batch."""
    write_completion = batch_driver.write_completion

    def suspended(*arguments: Any) -> None:
        patched.undo()
        assert query.run("exactly-once") == []
        assert query.run("exactly-once", 1) == []
        write_completion(*arguments)

    with query.monkeypatch.context() as patched:
        patched.setattr(batch_driver, "write_completion", suspended)
        [failure] = query.run("exactly-once")
    assert f"another driver of {query.name} has taken over" in failure
    # Compaction keeps the last record of each key, so a new process may see nothing else.
    with Decisions({"bootstrap.servers": query.bootstrap}) as decisions:
        key = decisions.key_of(query.name)
    stored = stored_committed(query.bootstrap, key.topic, 0)
    completions = [each.value for each in stored if each.key == completion_key(query.name)]
    assert [json.loads(each or b"")["batch"] for each in completions] == [0, 1]
    assert query.run("exactly-once", 2) == []
    assert query.committed() == EXPECTED + EXPECTED + EXPECTED
