"""Measurements of a node in comparison with Apache Kafka and librdkafka's mock cluster."""
