"""The mirror, which copies topics of one cluster to another, exactly once."""
