"""Bugs that were planted before the checkers that should find them, by an author who had read no checker."""
