"""One replica of the metadata log at work: elections and replication performed, snapshots, files."""
