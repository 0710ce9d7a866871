"""A partition above its log: leadership, high watermark, ISR, waiting requests; fetches from leaders,
truncation, throttles, rotten replicas.
"""
