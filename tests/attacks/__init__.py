"""Attacks on a secured cluster: each a program of its own, which exits with 0 if the node held, and 1 if it did not."""
