"""Several disks of a broker: the directory of each replica, and disks that hang or are full."""
