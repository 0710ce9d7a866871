"""Checks of the state that nodes derive from logs, against folds of these logs."""
