"""The services that a node's connections share: handlers, memory, clock, log, and temporary data of a turn. PORTED."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from odradek.env.ports import Log, TaskGroup
from odradek.node.connections.answers import HeldAnswers
from odradek.node.connections.buffers import ReceiveBuffers
from odradek.node.connections.charging import Charging
from odradek.node.connections.complaints import Complaints
from odradek.serving.api_table import ApiEntry, ApiTable
from odradek.serving.node_env import NodeEnv


class Muted(Protocol):
    """A connection that reads no requests for a while, because its client exceeded a quota."""

    def judge_wait(self) -> None:
        """Called when quotas have changed: shortens the wait to the wait that is still required."""


class ConnectionServices:
    """The services that all connections of a listener share."""

    __slots__ = (
        "after_turn",
        "answered",
        "answered_last",
        "buffers",
        "buggify",
        "charging",
        "clock",
        "complaints",
        "frame_bytes_max",
        "held",
        "log",
        "long_work",
        "meter",
        "muted",
        "new_event",
        "poison",
        "spills",
        "table",
        "tasks",
    )

    def __init__(
        self,
        *,
        table: ApiTable,
        buffers: ReceiveBuffers,
        env: NodeEnv,
        tasks: TaskGroup,
        log: Log,
        frame_bytes_max: int,
        after_turn: Callable[[], None],
        poison: bool = False,
    ) -> None:
        """`poison` overwrites each frame after its dispatch, to reveal handlers that keep a view of it. (For tests.)"""
        self.buggify = env.buggify if env.provokes else None
        """A hook of the simulator; None in production, so that the check in every turn is cheap."""
        self.table = table
        self.buffers = buffers
        self.charging: Charging | None = None
        """The charges for client quotas; None while there are no quotas, so that the check in every request is cheap.
        """
        self.muted: dict[Muted, None] = {}
        """The connections that are muted because of a quota, in the order in which they were muted."""
        self.meter = env.meter
        self.clock = env.clock
        self.long_work = env.long_work
        self.tasks = tasks
        self.new_event = env.event
        self.log = log
        self.complaints = Complaints(log)
        self.frame_bytes_max = frame_bytes_max
        self.held = HeldAnswers()
        self.after_turn = after_turn
        self.poison = poison
        self.spills: list[tuple[int, Any]] = []
        """Temporary data of one encoding: file ranges in the answer. It is empty between two encodings."""
        self.answered: list[ApiEntry] = []
        """The entries of the APIs that this turn has answered so far, with repetitions; empty between two turns."""
        self.answered_last: ApiEntry | None = None
        """The entry that was added last to `answered`."""
