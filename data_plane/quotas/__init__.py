"""Client quotas: the choice of the quota for a client, and the time that the client must wait."""
