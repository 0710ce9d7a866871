"""Simulation of whole clusters on a virtual clock, network and disk; every run replays from its seed."""
