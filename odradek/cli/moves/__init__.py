"""Commands that move partitions and their leaders, and the code that they share."""
