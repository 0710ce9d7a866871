"""TLS beside Apache Kafka's."""
