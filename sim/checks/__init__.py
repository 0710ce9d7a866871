"""Checks of a simulated cluster: during a run, and at its end."""
