"""Three nodes of ours beside three of Apache Kafka's."""
