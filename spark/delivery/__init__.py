"""Exactly-once delivery of the sink: the protocols, and the markers and decisions that they store in a topic."""
