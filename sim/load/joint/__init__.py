"""Transactions over many partitions, with offsets of a group committed in several ways, and what must be true of them."""
