"""The mirror: copies topics of one cluster to another, exactly once."""
