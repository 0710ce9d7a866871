"""Plans that move partitions between brokers and directories, and the execution of such plans."""
