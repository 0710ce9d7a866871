"""Bugs of history, and bugs that the authors of the checkers thought of."""
