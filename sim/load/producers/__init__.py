"""Producers of every kind."""
