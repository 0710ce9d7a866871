"""Appends to disks, and the cleaner."""
