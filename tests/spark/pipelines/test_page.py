"""The commands of docs/pipelines.md, in order, in this process, with fewer flights."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")
pytest.importorskip("deltalake", reason="the extra delta is not installed")

from odradek import Admin
from odradek.spark import __main__ as jobs
from tests.docs.markdown import blocks
from tests.node_process import RunningNode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = "docs/pipelines.md"
TOPICS = ["fleet"]
LIMITED = {"fleet-changes": "1500"}
"""Jobs that write test data, with the number of flights that is enough here."""


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
    more = ["--limit", LIMITED[words[2]]] if words[2] in LIMITED else []
    assert jobs.main([*words[2:], "--bootstrap", bootstrap, *more]) == 0


def test_the_page_from_top_to_bottom(
    spark: SparkSession, node: RunningNode, at_home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The page's commands run, and give what the page says."""
    _, cdc = blocks(PAGE, "sh")
    (fleet,) = blocks(PAGE, "python")
    for line in cdc.code.splitlines():
        run_job(line, node.bootstrap, at_home)
    written = capfd.readouterr().err
    exec(compile(fleet.code, f"{PAGE}:{fleet.line}", "exec"), {})
    count = int(capfd.readouterr().out.split()[0])
    assert f"the fleet has {count:,} aircraft" in written
