"""Produce and consume through librdkafka, beside Apache Kafka and librdkafka's mock cluster."""
