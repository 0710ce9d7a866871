"""The Raft core of the metadata quorum: PURE. Start reading in `core.py`."""
