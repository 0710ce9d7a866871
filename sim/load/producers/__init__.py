"""Workload: producers with all kinds of settings."""
