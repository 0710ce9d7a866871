"""Simulation of a group coordinator on a replicated partition, without whole nodes."""
