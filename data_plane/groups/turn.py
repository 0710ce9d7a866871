"""One turn of the group machine: the state before it, and the records and answers that it has produced.

PURE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from odradek.data_plane.coordination.asking import Answers, Reply
from odradek.data_plane.coordination.records import CoordinatorRecord, TransactionEnd
from odradek.data_plane.groups.state import GroupsState


class Turn:
    """A decision while it is being made: the state before it, the time, and the records and answers so far."""

    __slots__ = ("answers", "new_uuid", "now_ms", "records", "state", "wall_ms")

    def __init__(self, state: GroupsState, now_ms: int, wall_ms: int, new_uuid: Callable[[], bytes]) -> None:
        self.state = state
        self.now_ms = now_ms
        self.wall_ms = wall_ms
        self.new_uuid = new_uuid
        self.records: list[CoordinatorRecord | TransactionEnd] = []
        self.answers: Answers = []

    def catch_up(self, done: int) -> None:
        """Apply the records from index `done` on to `state`, so that later steps of this turn see them."""
        if len(self.records) > done:
            self.state = self.state.replay(self.records[done:])

    def answer(self, reply: Reply | None, response: Any) -> None:
        """Add an answer: `response` is sent to `reply` once all records of this turn are committed.

        If `reply` is None, do nothing.
        """
        if reply is not None:
            self.answers.append((reply, response))
