"""Clients and operators at work during a run."""
