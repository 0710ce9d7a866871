"""Several disks of a broker: which replica lies where, and disks that hang or are full."""
