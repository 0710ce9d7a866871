"""Members of groups that come, go, stall and return."""
