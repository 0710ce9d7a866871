"""Programs that copy a topic in transactions, and what must be true of the copy."""
