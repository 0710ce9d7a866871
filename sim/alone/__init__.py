"""The cores of the quorum and of replication alone, under schedules, without nodes."""
