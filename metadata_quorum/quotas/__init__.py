"""Quotas of clients: which one holds, and those of the controller (KIP-599)."""
