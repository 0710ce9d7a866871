"""Workload: consumer groups whose members start, end, pause and return."""
