"""Operators that act during a storm, each with one kind of task, and checks of their results."""

from sim.load.operators.operator import Operator

__all__ = ["Operator"]
