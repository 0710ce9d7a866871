"""Flink: a job with a source, a map and an exactly-once sink survives its own failure and the death of a node."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from jepsen_tests.real_cluster import Cluster
from odradek import Client
from tests.ecosystem.programs import (
    FLINK_VERSION,
    JVM,
    compiled,
    counted,
    create_topics,
    jars,
    java,
    produce,
    until,
)

pytestmark = [pytest.mark.ecosystem, pytest.mark.java]

PROGRAM = Path(__file__).parent / "CopyJob.java"
RECORDS, FAIL_AT = 8_000, 5_000
OPENED = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("util", "lang")]


def test_a_job_copies_exactly_once(cluster: Cluster, tmp_path: Path) -> None:
    """With Flink's two-phase sink each record is committed once, and no transaction stays open."""
    path = compiled(PROGRAM, jars(f"flink-{FLINK_VERSION}"), tmp_path / "classes")
    values = [str(number) for number in range(RECORDS)]
    create_topics(cluster.bootstrap, {"numbers": 2, "copies": 2})
    assert produce(cluster.bootstrap, "numbers", values) == RECORDS
    log = tmp_path / "flink.log"
    arguments = (cluster.bootstrap, "numbers", "copies", tmp_path / "checkpoints", str(FAIL_AT))

    def note() -> str:
        return log.read_text()[-4000:]

    with java("Flink", path, "CopyJob", *arguments, log=log, options=(*JVM, *OPENED)) as job:
        until("the first committed copies", lambda: counted(cluster.bootstrap, "copies"), note)
        cluster.kill(3)
        until("the job's end", lambda: not job.is_running(), note)
        assert job.process.returncode == 0, note()
    assert "failed once: true" in log.read_text()
    assert counted(cluster.bootstrap, "copies") == Counter(values)
    with Client(cluster.bootstrap) as client:
        states = {each.state for each in client.admin.list_transactions()}
    assert not states & {"Ongoing", "PrepareCommit", "PrepareAbort"}, states
