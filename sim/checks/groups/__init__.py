"""Promises about groups, their members and their offsets."""
