"""The Raft core of the metadata quorum. Start reading in `core.py`. PURE."""
