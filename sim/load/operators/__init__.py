"""Operators at work during a storm, each with one subject, and what they were promised."""

from sim.load.operators.operator import Operator

__all__ = ["Operator"]
