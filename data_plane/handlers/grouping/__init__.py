"""Handlers of group requests."""
