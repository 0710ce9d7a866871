"""Security: the identity of clients, and their rights."""
