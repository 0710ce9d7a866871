"""The metadata quorum: one replicated log decides what the cluster is, and this package decides that log."""
