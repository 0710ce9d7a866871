"""Recovery of a quorum at the disks of stopped nodes: reading what they hold, carrying a plan out."""
