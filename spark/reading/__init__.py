"""The planning and fetching of the source: ranges of offsets, tasks, the cluster as the driver sees it."""
