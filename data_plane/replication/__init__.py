"""The state of a partition above its log: leadership, the high watermark, and the requests that wait for it."""
