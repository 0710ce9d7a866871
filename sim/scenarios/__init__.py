"""The scenarios of a run: one node or a cluster, its clients, and the checks afterwards."""
