"""The common parts of group coordinators and transaction coordinators: one shard for each partition of an
internal topic that this broker leads.
"""
