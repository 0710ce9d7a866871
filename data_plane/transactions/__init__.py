"""Transaction coordinators: one shard for each partition of `__transaction_state` that this broker leads."""
