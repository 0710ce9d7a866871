"""Checks of answers to clients against the state of the whole cluster, at the moment when each answer is sent."""
