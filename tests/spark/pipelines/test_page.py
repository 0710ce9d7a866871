"""The commands of docs/pipelines.md, in order, in this process, with fewer flights."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")
pytest.importorskip("deltalake", reason="the extra delta is not installed")
pytest.importorskip("pyiceberg", reason="the extra iceberg is not installed")
pytest.importorskip("google.protobuf", reason="protobuf is not installed (the extra spark)")

from odradek import Admin
from odradek.spark import __main__ as jobs
from tests.cli.running import odradek_here
from tests.docs.markdown import blocks
from tests.node_process import RunningNode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = "docs/pipelines.md"
TOPICS = ["fleet", "flights", "weather", "enriched", "spoilt", "clean", "dead", "sessions", "alerts"]
TOPICS += ["timed", "late", "hours", "operating", "late-again", "hours-again"]
LIMITED = {
    "fleet-changes": ["--limit", "1500"],
    "flights": ["--limit", "1500"],
    "spoilt-flights": ["--limit", "2500"],
    "weather": ["--until", "2013-01-03"],
}
"""Jobs that write test data, with the arguments by which they write less."""


@pytest.fixture
def at_home(tmp_path: Path, node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to a folder that stands for the reader's. The page's topics are deleted afterwards."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    with Admin(bootstrap_servers=node.bootstrap) as admin:
        admin.delete_topics(TOPICS)


def run_job(line: str, bootstrap: str, home: Path) -> None:
    """Run one line of the page, `odradek spark NAME ...`, in this process against the node."""
    # The running Java process has a different working directory.
    words = [str(home / word) if word.endswith(".checkpoint") else word for word in shlex.split(line)]
    assert words[:2] == ["odradek", "spark"]
    more = LIMITED.get(words[2], [])
    assert jobs.main([*words[2:], "--bootstrap", bootstrap, *more]) == 0


def test_the_page_from_top_to_bottom(
    spark: SparkSession, node: RunningNode, at_home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The page's commands run, and give what the page says."""
    _, cdc, enrichment, one_flight, clean, one_letter, replay, sessions, *others = (
        block.code for block in blocks(PAGE, "sh")
    )
    fleet, snapshots = blocks(PAGE, "python")
    for line in cdc.splitlines():
        run_job(line, node.bootstrap, at_home)
    written = capfd.readouterr().err
    exec(compile(fleet.code, f"{PAGE}:{fleet.line}", "exec"), {})
    count = int(capfd.readouterr().out.split()[0])
    assert f"the fleet has {count:,} aircraft" in written
    for line in enrichment.splitlines():
        run_job(line, node.bootstrap, at_home)
    one, counted = one_flight.splitlines()
    assert "manufacturer" in json.loads(run_command(one, node.bootstrap))
    all_flights = run_command(counted.removesuffix(" | wc -l"), node.bootstrap)
    assert len(all_flights.splitlines()) == 1500
    for line in clean.splitlines():
        run_job(line, node.bootstrap, at_home)
    printed = capfd.readouterr().err
    assert re.search(r"the topic 'clean'; [1-9]\d* rows came late$", printed, re.MULTILINE)
    assert "25 dead letters: breaks the rule: distance > 0" in printed
    assert "dead.offset" in run_command(one_letter, node.bootstrap)
    run_job(replay, node.bootstrap, at_home)
    for line in sessions.splitlines():
        run_job(line, node.bootstrap, at_home)
    assert "version 0: " in capfd.readouterr().err
    timed, again, operate, alerts, new_code, roll_back = others
    for line in timed.splitlines():
        run_job(line, node.bootstrap, at_home)
    assert "small files were merged into" in capfd.readouterr().err
    exec(compile(snapshots.code, f"{PAGE}:{snapshots.line}", "exec"), {})
    flights, *batches = capfd.readouterr().out.splitlines()
    assert int(flights) == 1500
    assert [line.split()[0] for line in batches] == ["0", "1", "1"]
    run_job(again, node.bootstrap, at_home)
    assert re.search(r"[1-9]\d* records were loaded again", capfd.readouterr().err)
    run_job(operate, node.bootstrap, at_home)
    shown = run_command(alerts, node.bootstrap)
    assert {line.split()[0] for line in shown.splitlines()} == {"late", "hours"}
    shutil.copytree("operating.checkpoints", "before.checkpoints")
    run_job(new_code, node.bootstrap, at_home)
    run_job(roll_back, node.bootstrap, at_home)
    assert capfd.readouterr().err.count("all queries have ended") == 3


def run_command(line: str, bootstrap: str) -> str:
    """Run a command of the page that needs no Spark in this process, and return its output."""
    words = shlex.split(line)
    assert words[0] == "odradek"
    done = odradek_here(*words[1:], "--bootstrap-server", bootstrap)
    assert done.code == 0, done.err
    return done.out
