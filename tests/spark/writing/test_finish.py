"""The command `finish`: an operator ends a batch whose plan cannot be had again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from odradek.spark.delivery import finish as finish_command
from tests.spark.topics import Topics
from tests.spark.writing.query_runs import EXPECTED, FINER, ROWS, TASKS, Query, query, server

__all__ = ["query", "server"]
OTHERS = [part[::2] for part in ROWS]


def finish(query: Query, *words: str) -> int:
    """Run the command for this query; return its exit status."""
    return finish_command.main([query.name, "--bootstrap", query.bootstrap, *words])


@pytest.mark.parametrize("delivery", ["exactly-once", "two-phase"])
def test_a_batch_whose_plan_is_gone_is_kept_by_hand(
    query: Query, delivery: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`finish` shows the committed tasks. With `--keep` the batch is finished: the next run writes nothing of it, whatever
    its rows are, and then goes on."""
    assert query.run("exactly-once", only=(1, 2)) == []
    assert finish(query) == 0
    shown = capsys.readouterr().out
    assert f"batch 0 of {query.name} has begun and is not finished" in shown
    assert [line.split() for line in shown.splitlines() if line.endswith("committed")] == [
        ["1", "20", "committed"],
        ["2", "20", "committed"],
    ]
    assert (finish(query, "--keep", "1"), finish(query, "--keep", "0")) == (1, 0)
    kept = Counter([*ROWS[1], *ROWS[2]])
    assert query.run(delivery, rows=OTHERS) == []
    assert (query.committed(), query.prepared()) == (kept, 0)
    assert query.run(delivery, 1, rows=FINER) == []
    assert query.committed() == kept + EXPECTED
    assert (finish(query), finish(query, "--keep", "1")) == (0, 1)


@pytest.mark.parametrize("delivery", ["exactly-once", "two-phase", "at-least-once"])
@pytest.mark.parametrize("batch", [0, 1])
def test_a_batch_whose_plan_is_gone_is_written_again_by_hand(query: Query, delivery: str, batch: int) -> None:
    """With `finish --again` the next run writes the whole batch with any plan, beside the rows that were committed."""
    if batch:
        assert query.run("exactly-once", rows=[[b"before"]]) == []
    assert query.run("exactly-once", batch, only=(1, 2)) == []
    before = query.committed()
    assert finish(query, "--again", str(batch)) == 0
    assert query.run(delivery, batch, rows=FINER) == []
    assert query.run(delivery, batch + 1, rows=[[b"next"]]) == []
    assert query.committed() == before + EXPECTED + Counter([b"next"])


def test_a_query_that_has_lost_its_progress_goes_on_by_hand(
    query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the decisions topic is lost, the operator says by `finish` how far the query was."""
    decisions = f"{query.topic}-decisions"
    for batch in range(3):
        assert query.run("exactly-once", batch, decisionsTopic=decisions) == []
    before = query.committed()
    Topics(query.bootstrap).delete(decisions)
    assert len(query.run("exactly-once", 3, decisionsTopic=decisions)) == TASKS
    assert finish(query, "--decisions-topic", decisions) == 0
    assert "The query has committed transactions" in capsys.readouterr().out
    assert finish(query, "--decisions-topic", decisions, "--keep", "2") == 0
    assert query.run("exactly-once", 3, decisionsTopic=decisions) == []
    assert query.committed() == before + EXPECTED


def test_open_transactions_are_not_ended_by_hand(query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    """While a transaction is open, or is prepared, `finish` names the way to end it."""
    assert query.run("exactly-once", only=(1,)) == []
    assert query.run("exactly-once", commits=False) == []
    assert finish(query, "--keep", "0") == 1
    assert "has an open transaction: stop the query" in capsys.readouterr().err
    assert query.run("exactly-once") == []
    assert query.run("two-phase", 1, only=(0,)) == []
    assert finish(query) == 1
    assert "odradek spark two-phase --end" in capsys.readouterr().err
    assert query.run("two-phase", 1) == []


def test_the_offsets_of_a_begun_batch(
    query: Query, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `--checkpoint`, `finish` shows the offsets at which the sources of the batch end."""
    assert query.run("exactly-once", only=(1,)) == []
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    text = 'v1\n{"conf":{"spark.sql.shuffle.partitions":"4"}}\n{"flights":{"0":7}}'
    (tmp_path / "offsets" / "0").write_text(text)
    assert finish(query, "--checkpoint", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "spark.sql.shuffle.partitions=4" in shown
    assert '{"flights":{"0":7}}' in shown
