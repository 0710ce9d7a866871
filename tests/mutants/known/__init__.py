"""Bugs of the past, and bugs that the authors of the checkers invented."""
