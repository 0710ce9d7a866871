"""What the group coordinators and the transaction coordinators share: one shard for each partition of an
internal topic that this broker leads.
"""
