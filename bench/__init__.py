"""Measurements of a node beside named references: Apache Kafka and librdkafka's mock cluster."""
