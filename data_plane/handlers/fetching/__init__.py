"""Handlers of Fetch, ListOffsets and OffsetForLeaderEpoch: the partitions read, when a fetch waits, records outside of
the page cache.
"""
