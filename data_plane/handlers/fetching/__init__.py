"""Handlers of Fetch and of offset lookups."""
