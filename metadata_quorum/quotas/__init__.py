"""Client quotas in the metadata: the choice of the quota for a client, and the controller's own quotas
(KIP-599).
"""
