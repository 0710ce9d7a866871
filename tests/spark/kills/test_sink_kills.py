"""A real stream whose workers are killed at steps of exactly-once tasks. `make test-spark-kills` runs the whole matrix."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from testkit.kafka_server import KafkaUnavailable, java_command
from tests.node_process import RunningNode
from tests.spark.kills.sink_kills import Run, run_copy


def test_killed_workers_write_exactly_once(node: RunningNode) -> None:
    """Workers are killed seven times, around each step from the marker to the commit. Each row is there once."""
    try:
        java_command()
    except KafkaUnavailable as reason:
        pytest.skip(f"Spark is unavailable: {reason}")
    outcome = run_copy(Run("short", batches=3, worker_kills=7), node.bootstrap)
    assert (outcome.worker_kills, outcome.lost, outcome.doubled, outcome.open_transactions) == (7, 0, 0, 0)
    assert outcome.rows == 900
