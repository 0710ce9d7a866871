"""The cost of one request on its way through a node."""
