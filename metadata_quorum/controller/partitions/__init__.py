"""Decisions about partitions: placement, elections of leaders, in-sync and eligible replicas, reassignment,
added partitions.
"""
