"""The cost of one request inside a node."""
