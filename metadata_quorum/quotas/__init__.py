"""Client quotas in the metadata: the choice of the quota that applies to a client, and the quotas that the
controller itself enforces (KIP-599).
"""
