"""Workload: transactions over many partitions, with group offsets that are committed in several ways; and its checks."""
