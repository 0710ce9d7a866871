"""Security: who may do what."""
