"""The broker: partition logs, replication, request handlers."""
