"""The command `finish`: an operator ends a batch whose plan cannot be had again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from odradek.client.shells.blocking import Client
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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--keep", "0"], "the brokers know no committed transaction of it: check the query's id"),
        (["--again", "7"], "the brokers know no committed transaction of it: check the query's id"),
        (["--decisions-topic", "absent", "--keep", "0"], "the topic 'absent' has no progress of q-"),
    ],
)
def test_a_query_of_which_nothing_is_known_is_not_ended(
    query: Query, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slip in the query's id, or in the name of the decisions topic, leaves the cluster as it was."""
    Topics(query.bootstrap).create(f"{query.topic}-decisions", partitions=1, **{"cleanup.policy": "compact"})
    words = ["--decisions-topic", f"{query.topic}-decisions", *words]
    assert finish(query, *words) == 1
    assert sentence in capsys.readouterr().err
    assert finish(query, "--decisions-topic", "absent") == 0
    assert capsys.readouterr().out == f"the topic 'absent' has no progress of {query.name}\n"
    with Client(query.bootstrap) as client:
        assert "absent" not in client.metadata().topics


@pytest.mark.parametrize("word", ["-1", "first"])
def test_no_number_of_a_batch(query: Query, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A batch has a number from 0 on."""
    with pytest.raises(SystemExit):
        finish(query, f"--keep={word}")
    assert f"{word!r} is no number of a batch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({}, "the offsets of batch 0 cannot be read from"),
        ({"offsets/0": "v1\n"}, "the offsets of batch 0 cannot be read from"),
        ({"offsets/0": "v1\nno JSON\n"}, "--checkpoint wants the query's checkpointLocation"),
        ({"offsets/0": "v1\n{}\n{}", "metadata": '{"id":"other"}'}, "is that of the query other, not of q-"),
    ],
    ids=["no file", "cut", "damaged", "another query"],
)
def test_a_checkpoint_that_says_nothing(
    query: Query, tmp_path: Path, files: dict[str, str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint that cannot be read, or is that of another query, is named in one sentence."""
    assert query.run("exactly-once", only=(1,)) == []
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert finish(query, "--checkpoint", str(tmp_path)) == 1
    assert sentence in capsys.readouterr().err


def test_progress_that_is_lost_with_its_topic_is_said_again(query: Query) -> None:
    """A user deletes the decisions topic and goes on at least once: the batch is refused. `finish --keep` creates the
    topic again, and the query goes on."""
    decisions = f"{query.topic}-decisions"
    assert query.run("exactly-once", decisionsTopic=decisions) == []
    Topics(query.bootstrap).delete(decisions)
    assert len(query.run("at-least-once", 1, decisionsTopic=decisions)) == TASKS
    assert finish(query, "--decisions-topic", decisions, "--keep", "0") == 0
    assert query.run("at-least-once", 1, decisionsTopic=decisions) == []
    assert query.committed() == EXPECTED + EXPECTED
