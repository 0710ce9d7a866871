"""The Raft core of the metadata quorum without IO: elections, replication, roles, voters. Start reading in
`core.py`. PURE.
"""
