"""The services that a node's connections share: handlers, memory, clock, log, and the scratch of a turn. PORTED."""

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
    """A connection whose client has to wait."""

    def judge_wait(self) -> None:
        """Wait only for the debts that are left, now that quotas have changed."""


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
        """`poison` overwrites each frame after its dispatch, and looks at what answers share."""
        self.buggify = env.buggify if env.provokes else None
        """A hook of the simulator; None in production, because every turn of a connection tests it."""
        self.table = table
        self.buffers = buffers
        self.charging: Charging | None = None
        """The quotas of the clients; None while there are none, because every request tests it."""
        self.muted: dict[Muted, None] = {}
        """The connections that wait because of a quota, in the order of their waits."""
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
        """Scratch of one encoding, empty between two."""
        self.answered: list[ApiEntry] = []
        """The entries of the APIs that this turn has answered so far (with repetitions), empty between two."""
        self.answered_last: ApiEntry | None = None
        """The entry that was added last to `answered`."""
