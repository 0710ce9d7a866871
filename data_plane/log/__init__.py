"""Partition logs in Kafka's file formats: append and its checks, reads, loading, recovery, retention,
truncation, searches by time. The main module is `partition_log`.
"""
