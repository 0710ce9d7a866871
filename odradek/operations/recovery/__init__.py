"""Recovery of a quorum on the disks of stopped nodes: it reads their directories, and executes a plan."""
