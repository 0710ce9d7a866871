"""Plans that move partitions between brokers and directories, and their progress."""
