"""The world of a node: the ports, and the turns of its long work."""

from __future__ import annotations

from typing import Protocol

from odradek.env.ports import Env
from odradek.serving.long_work import LongWork

__all__ = ["NodeEnv"]


class NodeEnv(Env, Protocol):
    """The world of one node that serves: `odradek.node.real_node_env` on this machine, `sim.machine.sim_env` elsewhere."""

    @property
    def long_work(self) -> LongWork:
        """Turns for work that holds the loop, or the interpreter, for milliseconds."""
