"""The ports of a node on a real machine. PORTED."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.env.agreed_clock import AgreedClock
from odradek.env.real import RealEnv
from odradek.serving.long_work import LongWork

if TYPE_CHECKING:
    from odradek.serving.node_env import NodeEnv

__all__ = ["RealNodeEnv"]


class RealNodeEnv(RealEnv):
    """The implementation of `odradek.serving.node_env.NodeEnv` on a real machine."""

    def __init__(self) -> None:
        super().__init__()
        self.long_work = LongWork(self.clock, self.event, self.new_workers(1), self.meter)
        self.agreed_clock = AgreedClock(self.clock)


if TYPE_CHECKING:

    def _conforms(env: RealNodeEnv) -> NodeEnv:
        return env
