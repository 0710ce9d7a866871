"""Connections of a node: bytes in, frames dispatched, answers out."""
