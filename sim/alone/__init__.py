"""Simulation of single parts of the product, without whole nodes. A seed draws the schedule of events."""
