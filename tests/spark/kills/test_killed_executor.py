"""An executor that is killed in the middle of a batch, its Java process and all: source and sink lose nothing."""

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
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

RECORDS = 480
TIMEOUT_SECONDS = 600.0


def test_a_query_outlives_an_executor(
    node: RunningNode, fresh_topic: Callable[[str], str], checkpoint: str, whole_matrix: bool
) -> None:
    """The batch goes on with other executors; every record is there, once for a committed reader."""
    if not whole_matrix:
        pytest.skip(
            "a small cluster of its own: make test-spark, and make test-spark-kills kills more of them"
        )
    try:
        java_command()
    except KafkaUnavailable as reason:
        pytest.skip(f"Spark is unavailable: {reason}")
    topics = Topics(node.bootstrap)
    origin, target = topics.create(fresh_topic("origin")), topics.create(fresh_topic("target"))
    # One record in each batch, one batch in each answer: tasks take their time.
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
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": worker_python()},
        cwd=ROOT,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["killed"] == 1, "the query was over before anything could be killed"
    assert told["rows"] == RECORDS
    assert sorted(int(value) for value in told["values"]) == list(range(RECORDS))
