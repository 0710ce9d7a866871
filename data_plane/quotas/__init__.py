"""Client quotas: the quota that applies to a client, and the time that the client has to wait."""
