"""Attacks on a secured cluster. Each attack is a program of its own: it exits with 0 if the node held, and with 1 if
not."""
