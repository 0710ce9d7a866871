"""A cluster of three of our nodes in comparison with three nodes of Apache Kafka."""
