"""Fixtures that tests of several folders share: a running node, and Apache Kafka beside it."""

from __future__ import annotations

import pytest

from tests.kafka_jars import apache_kafka, kafka_jars
from tests.node_process import fresh_topic, node

__all__ = ["apache_kafka", "fresh_topic", "kafka_jars", "node"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-scripts",
        action="store_true",
        help="write what the Raft scripts say anew, then read the diff",
    )
