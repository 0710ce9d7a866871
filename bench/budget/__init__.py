"""The judge of the rule that every request has a budget: the most expensive legal frames, and what they cost a node."""
