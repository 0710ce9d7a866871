"""Offsets of groups: who may commit them, and what is told of them."""
