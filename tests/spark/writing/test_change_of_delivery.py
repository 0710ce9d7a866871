"""A batch must end in the delivery mode in which it began; otherwise the sink refuses it and says what to do.

The tests call the sink's writers as Spark does: task by task, then `commit` or `abort`. A missing rule would not show
as an error, but as duplicated or hidden rows.
"""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from odradek.spark.delivery import undecided
from odradek.spark.writing import prepared_before
from tests.spark.writing.query_runs import EXPECTED, TASKS, Query, query, server

__all__ = ["query", "server"]


def test_a_first_batch_that_exactly_once_has_begun_is_not_begun_again(query: Query) -> None:
    """A first batch began as exactly-once, and one of its tasks is missing. In two-phase mode the batch is refused."""
    assert query.run("exactly-once", only=(1, 2)) == []
    failures = query.run("two-phase")
    assert len(failures) == TASKS
    assert all("began with delivery=exactly-once" in each for each in failures)
    assert query.run("exactly-once") == []
    assert query.committed() == EXPECTED


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
    assert len(failures) == TASKS
    assert all(
        each.endswith(command) and "Start the query with delivery=two-phase" in each for each in failures
    )
    assert query.prepared() == 2
    if way_out == "two-phase":
        assert query.run("two-phase") == []
    else:
        assert undecided.main(command.split()[3:]) == 0, capsys.readouterr()
        assert query.run(delivery) == []
    assert query.committed() == EXPECTED
    assert query.run(delivery, batch=1, values=[b"later"]) == []
    assert query.committed() == EXPECTED + Counter({b"later": TASKS})


def test_another_topic_of_decisions_is_told_by_every_task(query: Query) -> None:
    """If decisionsTopic is changed in the middle of a stream, each task refuses to write, and each row is there
    once."""
    assert query.run("exactly-once") == []
    before = query.committed()
    assert query.run("exactly-once", batch=1, only=(1, 2)) == []
    failures = query.run("exactly-once", batch=1, decisionsTopic=f"{query.topic}-decisions")
    assert len(failures) == TASKS
    assert all("set the option decisionsTopic to that topic" in each for each in failures)
    assert query.run("exactly-once", batch=1) == []
    assert query.committed() == before + before


def test_a_query_that_starts_names_what_others_have_prepared(
    query: Query, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A query that lost its checkpoint has left prepared transactions. The start of the next query names the command
    that ends them."""
    monkeypatch.setattr(prepared_before, "_LONG_MS", 0)
    assert query.run("two-phase", only=(1, 2)) == []
    lost, query.name = query.name, f"{query.name}-anew"
    for delivery in ("exactly-once", "at-least-once", "two-phase"):
        caplog.clear()
        assert query.run(delivery, only=()) == []
        [line] = [each.getMessage() for each in caplog.records if "has prepared" in each.getMessage()]
        assert f"the query {lost} has prepared 2 transactions in the topic '{query.topic}'" in line
    assert undecided.main(line.partition("spark two-phase ")[2].split()) == 0
    assert query.prepared() == 0
