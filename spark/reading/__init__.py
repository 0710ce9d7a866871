"""How the source plans and fetches: ranges of offsets, tasks, the cluster as the driver sees it."""
