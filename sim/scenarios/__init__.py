"""The scenarios of a run: one node or a cluster, with its clients and the final checks."""
