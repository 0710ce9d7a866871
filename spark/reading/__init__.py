"""Planning and fetching for the source: ranges of offsets, tasks, and the driver's requests to the cluster."""
