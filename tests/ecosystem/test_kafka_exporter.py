"""kafka_exporter, a Go program that reads offsets, groups and replicas of a cluster, and exports them to Prometheus."""

from __future__ import annotations

import os
import re
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import confluent_kafka
import pytest

from jepsen_tests.real_cluster import Cluster
from testkit.processes import free_ports, spawn
from tests.ecosystem.programs import create_topics, produce, until

pytestmark = pytest.mark.ecosystem

RECORDS, READ = 100, 60


def test_offsets_lag_and_replicas_are_shown(cluster: Cluster, tmp_path: Path) -> None:
    """Its page shows the cluster's offsets, the group's lag and, after a death, the missing replicas."""
    program = os.environ.get("ODRADEK_KAFKA_EXPORTER") or shutil.which("kafka_exporter")
    if program is None:
        pytest.skip("kafka_exporter is missing: put it on the path, or set ODRADEK_KAFKA_EXPORTER to it")
    create_topics(cluster.bootstrap, {"words": 1})
    assert produce(cluster.bootstrap, "words", map(str, range(RECORDS))) == RECORDS
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "readers"})
    place = confluent_kafka.TopicPartition("words", 0, READ)
    until("a commit", lambda: consumer.commit(offsets=[place], asynchronous=False), str)
    (port,) = free_ports(1)
    log = tmp_path / "exporter.log"
    servers = [f"--kafka.server={each}" for each in cluster.bootstrap.split(",")]
    command = [program, *servers, "--kafka.version=4.0.0", f"--web.listen-address=127.0.0.1:{port}"]
    exporter = spawn("kafka_exporter", command, bootstrap="", log_path=log)

    def shows(series: str, value: int) -> bool:
        return figures(port).get(series) == value

    def note() -> str:
        return f"{figures(port)}\n{log.read_text()[-2000:]}"

    words = 'partition="0",topic="words"'
    try:
        until("the brokers", lambda: shows("kafka_brokers", 3), note)
        until("the end", lambda: shows(f"kafka_topic_partition_current_offset{{{words}}}", RECORDS), note)
        lag = f'kafka_consumergroup_lag{{consumergroup="readers",{words}}}'
        until("the lag", lambda: shows(lag, RECORDS - READ), note)
        until("all in sync", lambda: shows(f"kafka_topic_partition_in_sync_replica{{{words}}}", 3), note)
        cluster.kill(2)
        missing = f"kafka_topic_partition_under_replicated_partition{{{words}}}"
        until("a missing replica", lambda: shows(missing, 1), note)
    finally:
        exporter.kill()
        consumer.close()


def figures(port: int) -> dict[str, float]:
    """Return the series on the exporter's page, or none until it answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return {}
    return {name: float(value) for name, value in re.findall(r"^(kafka_\S+) (\S+)$", text, re.MULTILINE)}
