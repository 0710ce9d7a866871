"""Requests that controllers and brokers answer alike, from the node's image."""
