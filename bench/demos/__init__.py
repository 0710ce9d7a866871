"""Demonstrations on real data, checked to the last record."""
