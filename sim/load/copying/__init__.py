"""Workload: programs that copy a topic in transactions, and the checks of the copy."""
