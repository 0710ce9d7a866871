"""All commands of docs/spark.md, in order. Those that would only start another Spark run in this process."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from jepsen_tests import history_check
from jepsen_tests.__main__ import parse_arguments
from odradek import Admin
from odradek.spark import __main__ as jobs
from odradek.spark import quiet
from odradek.spark.worker_process import worker_python
from tests.docs.markdown import ROOT, blocks
from tests.node_process import RunningNode
from tests.spark.python_path import python_path
from tests.spark.sessions.test_worker_python import LAUNCHER
from tests.spark.streaming import patiently

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = "docs/spark.md"
TIMEOUT_SECONDS = 1200
PNG = b"\x89PNG\r\n\x1a\n"
SOUND = """\
{"kind": "send", "process": "p", "invoked": 0, "key": "t-0", "value": 1, "completed": 1, "outcome": "ok", "offset": 0, "error": ""}
{"kind": "poll", "process": "c", "invoked": 2, "completed": 3, "outcome": "ok", "records": {"t-0": [[0, 1]]}, "rebalanced": [], "final": false}
"""
"""Lines that `jepsen_tests` writes for two operations."""


@pytest.fixture
def at_home(tmp_path: Path, node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to a folder that stands for the reader's. The page's topics are deleted afterwards."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    with Admin(bootstrap_servers=node.bootstrap) as admin:
        admin.delete_topics(["flights", "late-flights", "late-again", "delays"])


def run_job(words: list[str], bootstrap: str) -> None:
    """Run `odradek spark ...` in this process against the node, with only the first flights."""
    assert words[:2] == ["odradek", "spark"]
    more = ["--limit", "5000"] if words[2] == "flights" else []
    assert jobs.main([*words[2:], "--bootstrap", bootstrap, *more]) == 0


def test_the_page_from_top_to_bottom(
    spark: SparkSession, node: RunningNode, at_home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The page's commands give tables, a feed and plots, and the streaming job resumes."""
    install, server, flights, _, whole_jobs, histories, *_ = blocks(PAGE, "sh")
    batch, stream, count, once = blocks(PAGE, "python")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.search(r"'\.\[(.*)\]'", install.code)
    assert named is not None
    assert set(named[1].split(",")) <= set(extras)
    launching, quietly = install.code.splitlines()[-2:]
    assert quietly == 'export SPARK_CONF_DIR="$(odradek spark quiet)"'
    assert quiet.main([]) == 0
    assert (Path(capfd.readouterr().out.strip()) / "log4j2.properties").exists()
    name, _, launcher = launching.removeprefix("export ").partition("=")
    assert (name, launcher) == ("PYSPARK_PYTHON", LAUNCHER.name)
    assert server.code == "odradek dev\n"
    run_job(shlex.split(flights.code), node.bootstrap)
    for block in (batch, stream, stream):
        # The running Java process has a different working directory.
        code = block.code.replace("late-flights.checkpoint", str(at_home / "late-flights.checkpoint"))
        code = code.replace("127.0.0.1:9092", node.bootstrap)
        compiled = compile(code, f"{PAGE}:{block.line}", "exec")
        patiently(partial(exec, compiled, {}))
    [view] = blocks(PAGE, "sql")
    for statement in view.code.replace("127.0.0.1:9092", node.bootstrap).rstrip().rstrip(";").split(";"):
        counted = spark.sql(statement).collect()
    spark.catalog.dropTempView("flights")
    assert [row[0] for row in counted] == [5000]
    printed = capfd.readouterr().out
    for airport in ("EWR", "JFK", "LGA"):
        assert airport in printed
    # The second run has nothing to do: Spark reports -1 or no batch.
    first, *again = map(int, re.findall(r"numOutputRows\W+?(-?\d+)", printed))
    assert first > 100
    assert again in ([], [0], [-1])
    here = {"spark": spark}
    counting = count.code.replace("127.0.0.1:9092", node.bootstrap).replace(",late-again", "")
    exec(once.code.replace("127.0.0.1:9092", node.bootstrap), here)
    for repetition in range(3):
        exec(counting, here)
        # The write is repeated under the same number, and its three rows are there once.
        assert counts(capfd.readouterr().out) == {"late-flights": first + (3 if repetition else 0)}
        here["write"](spark.range(3).selectExpr("cast(id as string) as value"), 7)
    for line in whole_jobs.code.splitlines():
        here = line.replace("delays.checkpoint", str(at_home / "delays.checkpoint"))
        run_job(shlex.split(here), node.bootstrap)
    faults, judge = map(shlex.split, histories.code.splitlines())
    assert faults[:3] == ["python", "-m", "jepsen_tests"]
    kept = at_home / parse_arguments(faults[3:]).keep
    kept.mkdir()
    (kept / "history.jsonl").write_text(SOUND)
    assert judge[:3] == ["python", "-m", "jepsen_tests.history_check"]
    # The running Java process has a different working directory.
    assert (
        history_check.main([str(at_home / word) if word.endswith(".jsonl") else word for word in judge[3:]])
        == 0
    )
    for picture in ("lag.png", "delays.png"):
        assert (at_home / picture).read_bytes().startswith(PNG)
    progress = capfd.readouterr().err
    for job in ("offline-load", "changelog", "derived-feed"):
        assert re.search(rf"^{job} +\d+\.\d s  \S", progress, re.MULTILINE)


def in_bash(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder, with this environment's commands on the path; return its output."""
    commands = Path(sys.executable).parent
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": python_path(),
            "PYSPARK_PYTHON": worker_python(),
            "SPARK_CONF_DIR": str(ROOT / "spark" / "conf"),
        },
        cwd=folder,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def counts(printed: str) -> dict[str, int]:
    """Return the rows of a printed Spark table with names and numbers."""
    return {name: int(number) for name, number in re.findall(r"\| *([\w-]+)\| *(\d+)\|", printed)}


def test_the_page_in_processes_of_its_own(
    spark: SparkSession,
    node: RunningNode,
    at_home: Path,
    capfd: pytest.CaptureFixture[str],
    whole_matrix: bool,
) -> None:
    """As separate processes, a job runs by spark-submit, and a job killed as on the page gives the same rows as a quiet
    run."""
    if not whole_matrix:
        pytest.skip("starts Spark eight times, so it runs only in make test-spark")
    *_, flights, kills, whole_jobs, _, submit = blocks(PAGE, "sh")
    _, stream, count, _ = blocks(PAGE, "python")
    run_job(shlex.split(flights.code), node.bootstrap)
    [changelog] = [line for line in whole_jobs.code.splitlines() if " changelog " in line]
    run_job(shlex.split(changelog), node.bootstrap)
    done = in_bash(f"{submit.code.strip()} --bootstrap {node.bootstrap}", at_home)
    assert done.returncode == 0, done.stderr
    # spark-submit prints everything to one stream.
    assert "no records have come since the last refresh" in done.stdout + done.stderr
    (at_home / "late.py").write_text(stream.code.replace("127.0.0.1:9092", node.bootstrap))
    # Fewer flights, in as many batches.
    done = in_bash(f"python late.py && {kills.code.replace('10000', '150')}", at_home)
    assert done.returncode == 0, done.stderr
    assert len(list((at_home / "late-again.checkpoint" / "commits").glob("[0-9]*"))) > 18
    capfd.readouterr()
    exec(count.code.replace("127.0.0.1:9092", node.bootstrap), {"spark": spark})
    found = counts(capfd.readouterr().out)
    assert found["late-again"] == found["late-flights"] > 100


def test_jobs_say_what_they_do(capsys: pytest.CaptureFixture[str]) -> None:
    """`odradek spark --help` lists all jobs, `NAME --help` describes each, and a wrong name is an error."""
    for name in jobs.JOBS:
        with pytest.raises(SystemExit) as ended:
            jobs.main([name, "--help"])
        assert ended.value.code == 0
        called = "odradek mirror" if name == "mirror" else f"odradek spark {name}"
        assert f"usage: {called}" in capsys.readouterr().out
    assert jobs.main(["no-such-job"]) == 2
    done = subprocess.run(
        [sys.executable, "-m", "odradek", "spark", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=TIMEOUT_SECONDS,
        check=True,
    )
    assert all(name in done.stdout for name in jobs.JOBS)
