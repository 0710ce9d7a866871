"""examples/spark_stream.py, in this folder's Spark session and, in the long form, as a process."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from odradek import Admin
from odradek.spark.worker_process import worker_python
from tests.docs.markdown import ROOT
from tests.examples.headers import printed_by
from tests.node_process import RunningNode
from tests.spark.python_path import python_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = ROOT / "examples" / "spark_stream.py"
TIMEOUT_SECONDS = 600
TABLE = printed_by("spark_stream")


def forget_topics(bootstrap: str) -> None:
    """Delete the example's topics, so that each run begins without them."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.delete_topics(["lines", "words"])


def test_the_stream_prints_what_its_header_says(
    spark: SparkSession,
    node: RunningNode,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    whole_matrix: bool,
) -> None:
    """The example prints the table that its header shows, and uses the existing session."""
    forget_topics(node.bootstrap)
    monkeypatch.setenv("ODRADEK_BOOTSTRAP", node.bootstrap)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert capsys.readouterr().out.strip() == TABLE.strip()
    forget_topics(node.bootstrap)
    if whole_matrix:
        done = subprocess.run(
            [sys.executable, EXAMPLE],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": python_path(), "PYSPARK_PYTHON": worker_python()},
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == TABLE.strip()
        forget_topics(node.bootstrap)
