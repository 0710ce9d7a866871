"""The section "Try it on one machine" of docs/spark-cluster.md: its cluster, its jobs and its results, with less data."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")
pytest.importorskip("deltalake", reason="the extra delta is not installed")

from odradek import Admin
from testkit.kafka_server import KafkaUnavailable, java_command
from testkit.processes import free_ports
from tests.docs.markdown import blocks
from tests.node_process import RunningNode
from tests.spark.python_path import python_path
from tests.spark.sessions.test_worker_python import LAUNCHER

PAGE = "docs/spark-cluster.md"
TIMEOUT_SECONDS = 1800.0
DONE_HERE = (
    "python3 -m venv",
    ". spark-env",
    "pip install",
    "odradek dev",
    "export ODRADEK",
    "export PYSPARK_PYTHON",
)
"""How the lines begin that install, and start a node: the tests have both already."""
LESS = {"fleet-changes": "--limit 2000", "flights": "--limit 1500", "weather": "--until 2013-01-04T15"}
"""Arguments with which jobs write less test data."""
TOPICS = ["fleet", "flights", "weather", "spoilt", "enriched", "clean", "dead"]
AIRCRAFT, FLIGHTS, GOOD, BAD = 3498, 1500, 4797, 203
"""What the page's last commands count with less data: aircraft, enriched flights, good rows, and dead letters."""


@pytest.fixture
def home(whole_matrix: bool, tmp_path: Path, node: RunningNode) -> Iterator[Path]:
    """The reader's directory. The page's topics are deleted afterwards."""
    if not whole_matrix:
        pytest.skip("starts a Spark cluster and seven jobs, so it runs only in make test-spark")
    try:
        java_command()
    except KafkaUnavailable as reason:
        pytest.skip(f"Spark is unavailable: {reason}")
    yield tmp_path
    with Admin(bootstrap_servers=node.bootstrap) as admin:
        admin.delete_topics(TOPICS)


def section() -> list[str]:
    """Return the commands of the section, as one script for each of its blocks."""
    page = [block.code for block in blocks(PAGE, "sh")]
    [first] = [index for index, code in enumerate(page) if "master.Master" in code]
    return page[first : first + 3]


def scripted() -> str:
    """Make one script of the section, with less data and free ports. At its end, it stops the cluster and waits."""
    cluster, jobs, results = section()
    cluster = "\n".join(line for line in cluster.splitlines() if not line.startswith(DONE_HERE))
    for port, free in zip(("7077", "8180"), free_ports(2), strict=True):
        cluster, jobs = cluster.replace(port, str(free)), jobs.replace(port, str(free))
    for job, words in LESS.items():
        jobs, changed = re.subn(rf"(?m)^(odradek spark {job} .*)$", rf"\1 {words}", jobs)
        assert changed == 1, job
    bin_folder = Path(sys.executable).parent
    return "\n".join(
        [
            f'export PATH="{bin_folder}:$PATH"',
            cluster,
            'trap "kill %1 %2 %3; wait" EXIT',
            jobs,
            "echo RESULTS",
            results,
        ]
    )


def test_three_pipelines_on_a_cluster_of_two_workers(home: Path, node: RunningNode) -> None:
    """The page's commands start a cluster, run three pipelines on it, and count what they have written."""
    environment = {
        **os.environ,
        "PYTHONPATH": python_path(),
        "PYSPARK_PYTHON": str(LAUNCHER),
        "ODRADEK_BOOTSTRAP": node.bootstrap,
    }
    environment.pop("SPARK_HOME", None)
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", scripted()],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    counts = done.stdout.partition("RESULTS\n")[2].split()
    assert [int(each) for each in counts] == [AIRCRAFT, FLIGHTS, GOOD, BAD]
