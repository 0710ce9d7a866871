"""Demonstrations on real data, with a check of every record."""
