"""An executor's Java process is killed in the middle of a batch. Source and sink lose no record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from odradek.spark.worker_process import worker_python
from testkit.kafka_server import KafkaUnavailable, java_command
from tests.docs.markdown import ROOT
from tests.node_process import RunningNode
from tests.spark.python_path import python_path
from tests.spark.topics import Topics

pyspark = pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

RECORDS = 480
TIMEOUT_SECONDS = 600.0


def test_a_query_outlives_an_executor(
    node: RunningNode, fresh_topic: Callable[[str], str], checkpoint: str, whole_matrix: bool
) -> None:
    """After the kill the batch continues with other executors. A read_committed consumer sees every record once."""
    if not whole_matrix:
        pytest.skip(
            "starts a Spark cluster, so it runs only in make test-spark; make test-spark-kills kills more executors"
        )
    try:
        java_command()
    except KafkaUnavailable as reason:
        pytest.skip(f"Spark is unavailable: {reason}")
    topics = Topics(node.bootstrap)
    origin, target = topics.create(fresh_topic("origin")), topics.create(fresh_topic("target"))
    # With one record per batch and one batch per response, tasks take long enough.
    topics.send(origin, [b"%d" % number for number in range(RECORDS)], linger_ms=0, batch_size=0)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.spark.kills.killed_executor",
            node.bootstrap,
            origin,
            target,
            checkpoint,
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": python_path(), "PYSPARK_PYTHON": worker_python()},
        cwd=ROOT,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["killed"] == 1, "the query ended before an executor could be killed"
    assert told["spark"] == pyspark.__version__
    assert told["rows"] == RECORDS
    assert sorted(int(value) for value in told["values"]) == list(range(RECORDS))
