"""Shared by the coordinators of groups and of transactions: shards over the led partitions of one topic."""
