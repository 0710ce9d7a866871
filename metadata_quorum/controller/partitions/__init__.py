"""Decisions about partitions: placement, leaders, in-sync replicas, reassignment."""
