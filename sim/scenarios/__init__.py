"""What a run is about: one node or a cluster, its clients, and what must be true afterwards."""
