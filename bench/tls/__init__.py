"""TLS, compared with Apache Kafka's."""
