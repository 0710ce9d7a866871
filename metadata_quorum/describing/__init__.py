"""Requests that describe metadata, which controllers and brokers answer in the same way from the node's
image.
"""
