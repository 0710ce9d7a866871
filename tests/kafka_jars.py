"""Apache Kafka for tests that compare with it. The fixtures skip a test, with the reason, if Kafka cannot run.

Import the fixtures you need into a test module (or use them through `tests/conftest.py`, which has them all).
Mark such tests `@pytest.mark.java`. A node takes a second and 400 MB, so all tests share the session's node.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testkit.kafka_server import SHORT_LIVED, KafkaUnavailable, ensure_jars, kafka_server
from testkit.processes import ServerProcess

TEST_HEAP = ("-Xmx512m", *SHORT_LIVED[1:])
NO_RETENTION = {
    "log.retention.check.interval.ms": "86400000",
    "log.initial.task.delay.ms": "86400000",
}
"""Tests write records of the year 2023. Without this setting, retention would remove them during a test."""
TRANSACTIONS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
"""How often the coordinator checks for transactions that are open too long. The default is 10 s."""

GROUPS = {
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.session.timeout.ms": "1000",
}
"""Groups of the consumer protocol rebalance by heartbeats, which come every 5 s by default."""


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """Return the directory of Kafka's jars. `tests.kafka_tools` calls its tools."""
    try:
        return ensure_jars()
    except KafkaUnavailable as reason:
        pytest.skip(f"Apache Kafka is unavailable: {reason}")


@pytest.fixture(scope="session")
def apache_kafka(kafka_jars: Path) -> Iterator[ServerProcess]:
    """Run an Apache Kafka of one combined node for the whole session."""
    with kafka_server(heap=TEST_HEAP, settings={**NO_RETENTION, **TRANSACTIONS, **GROUPS}) as server:
        yield server
