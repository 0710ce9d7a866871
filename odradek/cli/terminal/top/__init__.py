"""`odradek top`: a live view of brokers, disks, topics, groups and clients."""
