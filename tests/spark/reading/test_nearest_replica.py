"""Reads from the nearest replica: Spark's tasks in a follower's rack get records from this follower (KIP-392)."""

from __future__ import annotations

import re
import signal
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from odradek import Client
from odradek.client.admin.admin_topics import NewTopic
from testkit.processes import base_port
from tests.cli.nodes.test_dev import line, running
from tests.cluster.test_real_nodes import in_sync, until
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 400
RECORD_BYTES = 5000
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
METRICS_PORT_DISTANCE = 500


def fetched_bytes(port: int) -> int:
    """Return the total bytes of a node's Fetch responses."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port + METRICS_PORT_DISTANCE}/metrics") as page:
        found = re.search(r'^odradek_response_bytes_total\{api="Fetch"\} (\S+)$', page.read().decode(), re.M)
    return 0 if found is None else int(float(found[1]))


def test_a_follower_in_the_same_rack_serves_the_tasks(spark: SparkSession, tmp_path: Path) -> None:
    """If `kafka.client.rack` is a follower's rack, this follower sends the records, and the leader almost nothing."""
    port = base_port(3)
    for number in (1, 2, 3):
        (tmp_path / f"node-{number}.properties").write_text(
            f"broker.rack=rack-{number}\nreplica.selector.class={SELECTOR}\n"
        )
    with running("dev", "--nodes", "3", "--port", str(port), "--data", tmp_path, stop=signal.SIGINT) as dev:
        told = [line(dev.stdout) for _ in range(4)]
        assert told[3] == "ready", told
        bootstrap = f"127.0.0.1:{port}"
        with Client(bootstrap) as client:
            [created] = client.admin.create_topics([NewTopic("near", 1, 3)])
            assert created.error is None
            # The controller has created the topic, but the broker may not know it yet.
            described = until("the topic", lambda: client.admin.describe_topics(["near"])[0])
            leader = described.partitions[0].leader
        Topics(bootstrap).send("near", [b"x" * RECORD_BYTES] * RECORDS)
        until("all in sync", lambda: in_sync(bootstrap, "near", 3))
        follower = leader % 3 + 1
        before = {node: fetched_bytes(port + node - 1) for node in (leader, follower)}
        frame = (
            spark.read.format("odradek")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("kafka.client.rack", f"rack-{follower}")
            .option("subscribe", "near")
            .load()
        )
        assert frame.select("offset").distinct().count() == RECORDS
        sent = {node: fetched_bytes(port + node - 1) - at for node, at in before.items()}
        assert sent[follower] > RECORDS * RECORD_BYTES
        assert sent[leader] < RECORDS * RECORD_BYTES // 2
