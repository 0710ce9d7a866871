"""Helpers that tests and benchmarks share: server processes, ports, requests by hand. They are never installed."""
