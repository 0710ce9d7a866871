"""Simulation of one log directory with its logs, without brokers or coordinators."""
