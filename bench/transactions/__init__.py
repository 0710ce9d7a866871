"""Transactions beside Apache Kafka's."""
