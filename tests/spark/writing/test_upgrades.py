"""A query that an older version of the sink began goes on with this one.

The older markers lack a run, and their batches lack a completion.
"""

from __future__ import annotations

from collections import Counter

import attrs
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from odradek.spark.delivery import finish as finish_command
from odradek.spark.delivery.markers import MarkerLog
from tests.spark.writing.query_runs import EXPECTED, FINER, ROWS, TASKS, Query, query, server

__all__ = ["query", "server"]


def run_older(query: Query, batch: int = 0, only: tuple[int, ...] = tuple(range(TASKS))) -> None:
    """Run tasks as the older version did: their markers name no run, and have other hashes."""
    writer = query.stream_writer("exactly-once")
    writer._plan = attrs.evolve(writer._plan, run="")
    with query.monkeypatch.context() as patched:
        patched.setattr(MarkerLog, "hash_version", lambda log, batch: 1)
        for task in only:
            assert query.write(writer, task, ROWS[task], batch).held is None


@pytest.mark.parametrize("delivery", ["exactly-once", "two-phase", "at-least-once"])
def test_a_query_goes_on_behind_a_batch_of_an_older_version(query: Query, delivery: str) -> None:
    """The older version has ended a batch. The next one has any delivery and any tasks."""
    run_older(query)
    assert query.run(delivery, 1, rows=[[b"next"]]) == []
    assert query.run(delivery, 2, rows=FINER) == []
    assert query.committed() == EXPECTED + EXPECTED + Counter([b"next"])


@pytest.mark.parametrize("only", [(0,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("batch", [0, 1])
def test_a_batch_that_an_older_version_began_is_ended(
    query: Query, batch: int, only: tuple[int, ...]
) -> None:
    """Some tasks have committed before the upgrade. Other plans and deliveries are refused, and the first plan ends the
    batch."""
    if batch:
        run_older(query)
    run_older(query, batch, only)
    before = query.committed()
    for failures in (
        query.run("exactly-once", batch, rows=FINER),
        query.run("exactly-once", batch, rows=[[value + b"!" for value in part] for part in ROWS]),
        query.run("two-phase", batch),
        query.run("at-least-once", batch),
    ):
        assert failures
    assert (query.committed(), query.prepared()) == (before, 0)
    assert query.run("exactly-once", batch) == []
    assert query.run("exactly-once", batch, rows=FINER) == []
    assert query.committed() == Counter({value: count * (batch + 1) for value, count in EXPECTED.items()})


def test_finish_says_that_a_batch_of_an_older_version_may_be_whole(
    query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody knows whether such a batch has ended, so `finish` names the file that says it."""
    run_older(query)
    assert finish_command.main([query.name, "--bootstrap", query.bootstrap]) == 0
    assert "if the query's checkpoint has the file commits/0" in capsys.readouterr().out
    assert query.run("exactly-once", 1) == []
    assert finish_command.main([query.name, "--bootstrap", query.bootstrap]) == 0
    assert "no later batch has begun" in capsys.readouterr().out
