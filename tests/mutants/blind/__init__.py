"""Bugs by an author who had read no checker. They were planted before the checkers that should find them were
written."""
