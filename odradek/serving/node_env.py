"""The environment of a node: the ports, the schedule of its long work, and a wall clock with bounds of its error."""

from __future__ import annotations

from typing import Protocol

from odradek.env.agreed_clock import AgreedClock
from odradek.env.ports import Env
from odradek.serving.long_work import LongWork

__all__ = ["NodeEnv"]


class NodeEnv(Env, Protocol):
    """The environment of one node. `odradek.node.real_node_env` implements it for a real machine,
    `sim.machine.sim_env` for a simulated one.
    """

    @property
    def long_work(self) -> LongWork:
        """The schedule for work that occupies the event loop, or the interpreter, for milliseconds."""

    @property
    def agreed_clock(self) -> AgreedClock:
        """The wall clock for decisions by age: which data is deleted, and which certificates or tokens have expired."""
