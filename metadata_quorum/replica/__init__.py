"""One running replica of the metadata log: elections, replication, snapshots and files."""
