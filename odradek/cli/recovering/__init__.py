"""Commands that recover a quorum at the disks of stopped nodes, and the code that they share."""
