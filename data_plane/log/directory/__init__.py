"""One log directory: its logs, their upkeep, its free space, its small files and worker threads, copies from
other disks.
"""
