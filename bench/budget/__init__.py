"""The check of the rule that every request has a budget: the most expensive legal frames, and their cost for a node."""
