"""What group coordinators and transaction coordinators share: shards over the led partitions of one topic."""
