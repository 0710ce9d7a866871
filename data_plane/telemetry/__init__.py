"""What a broker's clients report of themselves (KIP-714): subscriptions, client instances, and the figures they push."""
