"""What users import: the blocking and the async clients, over the same core."""
