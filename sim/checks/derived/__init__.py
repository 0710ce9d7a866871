"""Checks of the state that nodes derive from their logs: it must equal a model built from the same log."""
