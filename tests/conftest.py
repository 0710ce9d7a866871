"""Fixtures that tests of several folders share: a running node, and Apache Kafka beside it."""

from __future__ import annotations

from tests.kafka_jars import apache_kafka, kafka_jars
from tests.node_process import fresh_topic, node

__all__ = ["apache_kafka", "fresh_topic", "kafka_jars", "node"]
