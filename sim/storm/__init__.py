"""Troubles of a run: what breaks, when, and within which fault model."""
