"""Partition state above the log: leadership, the high watermark, and the requests that wait for it."""
