"""Simulations of one consumer group with members of both protocols, and of the commits and positions of one client, without whole nodes."""
