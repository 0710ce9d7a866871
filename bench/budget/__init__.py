"""Checks the rule that every request has a budget: sends the most expensive legal frames, and measures their cost for
a node.
"""
