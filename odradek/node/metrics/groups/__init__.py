"""Metrics of consumer groups: how many there are, and how far they lag."""
