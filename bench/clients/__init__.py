"""Our client library beside others."""
