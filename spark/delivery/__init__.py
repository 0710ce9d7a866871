"""Exactly-once delivery of the sink: the protocol, its markers, and the topic that keeps them."""
