"""One log directory: its logs, their upkeep and its small files."""
