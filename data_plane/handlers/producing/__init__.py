"""Handlers of Produce and of producers."""
