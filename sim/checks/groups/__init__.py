"""Checks of consumer groups: members, assignments, records and offsets."""
