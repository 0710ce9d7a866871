"""The log cleaner: it compacts logs, keeping the latest record of every key."""
