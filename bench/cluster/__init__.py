"""A cluster of three nodes of ours in comparison with three of Apache Kafka."""
