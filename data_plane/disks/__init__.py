"""The several disks of a broker: which directory holds which replica, and what happens when a disk hangs or
is full.
"""
