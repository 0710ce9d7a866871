"""What commands that move partitions and their leaders share."""
