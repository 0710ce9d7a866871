"""Coordination of groups, and their committed offsets."""
