"""The requests of a quorum replica to other nodes, and the addresses of those nodes."""
