"""Appends to disks, and the cleaner of compacted logs."""
