"""Produce and consume with librdkafka, compared with Apache Kafka and librdkafka's mock cluster."""
