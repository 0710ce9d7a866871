"""Many connections, many partitions, large metadata."""
