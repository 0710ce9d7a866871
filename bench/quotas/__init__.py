"""Clients with quotas, and other clients of the same node."""
