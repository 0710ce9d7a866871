"""Simulation of a transaction coordinator on a replicated partition, without whole nodes."""
