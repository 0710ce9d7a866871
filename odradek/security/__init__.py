"""Security: who a client is, and what it may do."""
