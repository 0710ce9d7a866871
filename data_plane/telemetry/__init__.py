"""The reports of a broker's clients about themselves (KIP-714): subscriptions, client instances, and the
figures they push.
"""
