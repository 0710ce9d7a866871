"""Client telemetry (KIP-714): subscriptions to clients' metrics, client instances, and the figures that
clients push to a broker.
"""
