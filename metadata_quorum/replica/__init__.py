"""One running replica of the metadata log: the driver of the Raft core, writes and syncs, requests,
connections, snapshots, files, published images.
"""
