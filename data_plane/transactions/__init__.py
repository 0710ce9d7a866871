"""Transaction coordinators: one shard per led partition of `__transaction_state`; markers, verification,
producer ids.
"""
