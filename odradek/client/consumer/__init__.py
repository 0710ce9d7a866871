"""Positions, fetches and group membership: the consumer without threads."""
