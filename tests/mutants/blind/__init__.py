"""Bugs that were planted by somebody who had read no checker, before the checkers that are to find them."""
