"""The several disks of a broker: which directory holds which replica, moves between them, disks that hang or
are full, the scrub.
"""
