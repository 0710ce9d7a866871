"""One turn of the group machine: the state that it sees, its records and its answers. PURE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from odradek.data_plane.coordination.asking import Answers, Reply
from odradek.data_plane.coordination.records import CoordinatorRecord, TransactionEnd
from odradek.data_plane.groups.state import GroupsState


class Turn:
    """One decision in the making: the state before the decision, the time, its records and its answers."""

    __slots__ = ("answers", "new_uuid", "now_ms", "records", "state", "wall_ms")

    def __init__(self, state: GroupsState, now_ms: int, wall_ms: int, new_uuid: Callable[[], bytes]) -> None:
        self.state = state
        self.now_ms = now_ms
        self.wall_ms = wall_ms
        self.new_uuid = new_uuid
        self.records: list[CoordinatorRecord | TransactionEnd] = []
        self.answers: Answers = []

    def catch_up(self, done: int) -> None:
        """Replay the records from the number `done` on, so that what follows in this turn sees them."""
        if len(self.records) > done:
            self.state = self.state.replay(self.records[done:])

    def answer(self, reply: Reply | None, response: Any) -> None:
        """Give `response` once everything that this turn decides is committed."""
        if reply is not None:
            self.answers.append((reply, response))
