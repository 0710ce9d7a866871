"""Partition logs in Kafka's file formats. The main module is `partition_log`."""
