"""Checks of a simulated cluster, during a run and at its end: invariants, availability, outages, stored files,
promises between nodes.
"""
