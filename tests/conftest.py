"""Fixtures that tests of several folders share: a running node, Apache Kafka beside it, scripts to rewrite."""

from __future__ import annotations

import pytest

from tests.kafka_jars import apache_kafka, kafka_jars
from tests.node_process import fresh_topic, node

__all__ = ["apache_kafka", "fresh_topic", "kafka_jars", "node"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what scripts print as the expected output")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether to write what the scripts print into them; review the difference."""
    return bool(request.config.getoption("--rewrite"))
