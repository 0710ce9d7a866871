"""Restarts in which the stored progress says less than it seems to: empty tasks, open transactions, other topics.

None of them doubles a row, and none stops a query that could go on.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from odradek.client.shells.producer import Producer
from odradek.spark.delivery.decisions import Decisions
from odradek.spark.delivery.markers import MarkerLog
from odradek.spark.writing.sink_task import SinkTask
from tests.spark.topics import Topics
from tests.spark.writing.query_runs import EXPECTED, ROWS, TASKS, Query, query, server

__all__ = ["query", "server"]
FEWER = [[*ROWS[0], *ROWS[1]], ROWS[2]]


@pytest.mark.parametrize("only", [(0,), (0, 2)], ids=["no rows", "rows"])
def test_a_task_without_rows_does_not_bind_its_batch_to_the_topic_before(
    query: Query, only: tuple[int, ...]
) -> None:
    """The topic is changed between two batches, and task 0 of the new batch has no rows. Its marker names the topic of
    the batch before. After a crash the batch ends in its own topic."""
    other = Topics(query.bootstrap).create(f"{query.topic}-other", partitions=2)
    assert query.run("exactly-once") == []
    first, query.topic = query.topic, other
    rows: list[list[bytes]] = [[], *ROWS]
    assert query.run("exactly-once", 1, only=only, rows=rows) == []
    assert query.run("exactly-once", 1, rows=rows) == []
    assert query.committed(first) == query.committed(other) == EXPECTED


@pytest.mark.parametrize("lost", [False, True], ids=["option left out", "topic deleted"])
def test_at_least_once_does_not_write_beside_progress_in_another_topic(query: Query, lost: bool) -> None:
    """A batch has begun exactly once. The user goes on at least once, and leaves out `decisionsTopic`, or has deleted
    that topic: each task refuses to write."""
    decisions = f"{query.topic}-decisions"
    assert query.run("exactly-once", only=(1, 2), decisionsTopic=decisions) == []
    before = query.committed()
    if lost:
        Topics(query.bootstrap).delete(decisions)
    failures = query.run("at-least-once", **({"decisionsTopic": decisions} if lost else {}))
    assert len(failures) == TASKS
    assert all(f"odradek spark finish {query.name} --decisions-topic" in each for each in failures)
    assert query.committed() == before


def test_a_task_without_rows_awaits_no_commit_of_the_batch_before(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator answers a commit before the partitions have its control markers. An empty task of the
    next batch succeeds before they come."""
    assert query.run("exactly-once", only=(1,)) == []
    writer = query.stream_writer("exactly-once")
    reports = [query.write(writer, task, part) for task, part in enumerate(ROWS)]
    late = MarkerLog(query.name)
    with Decisions({"bootstrap.servers": query.bootstrap}) as decisions:
        key, end = decisions.end_of(query.name)
        late = decisions.read(query.name, key, end)
    assert late.is_undecided(2)
    writer.commit(reports, 0)
    known = Decisions.read

    def read_late(self: Decisions, *found: Any) -> MarkerLog:
        """Read as if the control markers of batch 0 were not yet there, while its completion is."""
        log = known(self, *found).copy()
        log.markers.pop(2, None)
        log._open = dict(late._open)
        return log

    monkeypatch.setattr(Decisions, "read", read_late)
    following = query.stream_writer("exactly-once")
    assert query.write(following, 2, [], 1).rows == 0
    monkeypatch.setattr(Decisions, "read", known)
    assert query.run("exactly-once", 1, rows=[[b"next"], [], []]) == []
    assert query.committed() == EXPECTED + Counter([b"next"])


def test_an_open_transaction_of_a_dead_attempt_does_not_bind_the_plan(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt dies between its marker and its commit, and nothing else is committed. The next run has fewer tasks,
    so no attempt takes that transactional id. The batch is written once."""

    def dies(producer: Producer) -> None:
        producer._leave_open()
        raise RuntimeError("killed")

    commit = Producer.commit_transaction
    monkeypatch.setattr(Producer, "commit_transaction", dies)
    assert query.run("exactly-once", only=(2,)) == ["killed"]
    monkeypatch.setattr(Producer, "commit_transaction", commit)
    assert query.prepared() == 1
    assert query.run("exactly-once", rows=FEWER) == []
    assert (query.committed(), query.prepared()) == (EXPECTED, 0)


def test_a_late_executor_of_a_killed_run_adds_nothing(query: Query) -> None:
    """The next run, with fewer tasks, has committed one of them when an executor of the killed run writes another task.
    That executor holds its rows, and the driver of the next run aborts them."""
    killed, following = query.stream_writer("exactly-once"), query.stream_writer("exactly-once")
    reports = [query.write(following, 0, FEWER[0])]
    assert query.write(killed, 2, ROWS[2]).held is not None
    reports.append(query.write(following, 1, FEWER[1]))
    following.commit(reports, 0)
    assert (query.committed(), query.prepared()) == (EXPECTED, 0)


@pytest.mark.parametrize("finishes", [False, True], ids=["begun", "finished"])
def test_two_runs_at_once_never_both_commit(
    query: Query, monkeypatch: pytest.MonkeyPatch, finishes: bool
) -> None:
    """An executor of a killed run has found nothing of its batch, and is slow. Meanwhile the next run writes the batch
    with other tasks. The slow attempt then commits nothing."""
    killed, following = query.stream_writer("exactly-once"), query.stream_writer("exactly-once")
    reports: list[Any] = []
    send = SinkTask.send_rest

    def slow(task: SinkTask) -> None:
        monkeypatch.setattr(SinkTask, "send_rest", send)
        send(task)
        reports.extend(query.write(following, number, part) for number, part in enumerate(FEWER))
        if finishes:
            following.commit(reports, 0)

    monkeypatch.setattr(SinkTask, "send_rest", slow)
    if finishes:
        with pytest.raises(RuntimeError, match=f"another run has finished batch 0 of {query.name}"):
            query.write(killed, 2, ROWS[2])
    else:
        assert query.write(killed, 2, ROWS[2]).held is not None
        following.commit(reports, 0)
    assert query.run("exactly-once", rows=FEWER) == []
    assert (query.committed(), query.prepared()) == (EXPECTED, 0)


def test_a_run_that_finds_the_commit_of_a_late_executor_adds_nothing(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run, with other tasks, has found nothing of the batch. Then an executor of the killed run commits. The
    next run holds its rows, and its driver refuses the batch."""
    killed, following = query.stream_writer("exactly-once"), query.stream_writer("exactly-once")
    send = SinkTask.send_rest

    def slow(task: SinkTask) -> None:
        monkeypatch.setattr(SinkTask, "send_rest", send)
        send(task)
        assert query.write(killed, 2, ROWS[2]).held is None

    monkeypatch.setattr(SinkTask, "send_rest", slow)
    reports = [query.write(following, task, part) for task, part in enumerate(FEWER)]
    with pytest.raises(RuntimeError, match=r"has committed 20 rows of task 2.* Nothing was added"):
        following.commit(reports, 0)
    following.abort(reports, 0)
    assert query.committed() == Counter(ROWS[2])
    assert query.run("exactly-once") == []
    assert (query.committed(), query.prepared()) == (EXPECTED, 0)
