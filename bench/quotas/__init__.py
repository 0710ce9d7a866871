"""Clients with quotas, and their neighbours."""
