"""Apache Kafka for tests that compare with it: fixtures that skip aloud where it cannot run.

Import the fixtures you need into a test module (or use them through `tests/conftest.py`, which has them all).
Mark such tests `@pytest.mark.java` and, as a node takes a second and 400 MB, share the session's one.
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
"""Tests write records of the year 2023: a look for what is too old, in the middle of one, would take them away."""
TRANSACTIONS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
"""How often the coordinator looks for transactions that are open for too long; 10 s by default."""

GROUPS = {
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.session.timeout.ms": "1000",
}
"""Groups of the new protocol rebalance by heartbeats, by default one in 5 s."""


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """The directory of Kafka's jars; `tests.kafka_tools` calls its tools."""
    try:
        return ensure_jars()
    except KafkaUnavailable as reason:
        pytest.skip(f"Apache Kafka is unavailable: {reason}")


@pytest.fixture(scope="session")
def apache_kafka(kafka_jars: Path) -> Iterator[ServerProcess]:
    """A running Apache Kafka with one combined node, for the whole session."""
    with kafka_server(heap=TEST_HEAP, settings={**NO_RETENTION, **TRANSACTIONS, **GROUPS}) as server:
        yield server
