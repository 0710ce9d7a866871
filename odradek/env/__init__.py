"""The ports, by which code reaches clock, disks, network and processes, and their implementation on this machine."""
