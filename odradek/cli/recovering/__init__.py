"""Commands that recover a quorum from the disks of stopped nodes, and the code that they share."""
