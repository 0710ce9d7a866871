"""The world of a node: the ports, the turns of its long work, and a wall clock that knows how wrong it may be."""

from __future__ import annotations

from typing import Protocol

from odradek.env.agreed_clock import AgreedClock
from odradek.env.ports import Env
from odradek.serving.long_work import LongWork

__all__ = ["NodeEnv"]


class NodeEnv(Env, Protocol):
    """The world of one node that serves: `odradek.node.real_node_env` on this machine, `sim.machine.sim_env` elsewhere."""

    @property
    def long_work(self) -> LongWork:
        """Turns for work that holds the loop, or the interpreter, for milliseconds."""

    @property
    def agreed_clock(self) -> AgreedClock:
        """The wall clock, for things that are deleted, and clients that are refused, because of their age."""
