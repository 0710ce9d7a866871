"""The metadata image: the cluster at one offset of the metadata log, as an immutable value."""
