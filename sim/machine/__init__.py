"""The virtual machine: time, network, disks, and the run of a world."""
