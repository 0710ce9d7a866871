"""The cleaner: it keeps the latest record of every key of compacted logs."""
