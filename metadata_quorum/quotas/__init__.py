"""Quotas of clients: the choice of the quota that applies, and the controller's quotas (KIP-599)."""
