"""Transactions, compared with Apache Kafka's."""
