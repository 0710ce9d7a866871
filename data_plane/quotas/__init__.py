"""Client quotas: which one holds for a client, and how long the client has to wait."""
