"""Partition logs in Kafka's file formats. Start reading at `partition_log`."""
