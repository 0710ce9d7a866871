"""Values that the parts of the group machine hand to each other: a request, and one turn's records and answers.
PURE."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, TypeAlias

from data_plane.groups.classic_group import ClassicGroup, Member, Reply
from data_plane.groups.records import CoordinatorRecord
from data_plane.groups.state import GroupsState

Answers: TypeAlias = list[tuple[Reply, Any]]
"""Replies with their responses, to be given when the decision that made them is committed."""


class Ask:
    """A request of a client (or None: time has passed) as a coordinator receives it."""

    __slots__ = ("asked_at", "client_host", "client_id", "reply", "request", "version", "wall_ms")

    def __init__(
        self,
        request: Any,
        version: int,
        reply: Reply | None,
        wall_ms: int,
        client_id: str = "",
        client_host: str = "",
    ) -> None:
        self.request = request
        self.version = version
        self.reply = reply
        self.wall_ms = wall_ms
        self.client_id = client_id
        self.client_host = client_host
        self.asked_at = 0.0
        """Monotonic seconds at which its coordinator began to owe an answer."""


class Turn:
    """One decision in the making: the state it sees, the time, what it appends and whom it answers."""

    __slots__ = ("answers", "new_uuid", "now_ms", "records", "state", "wall_ms")

    def __init__(self, state: GroupsState, now_ms: int, wall_ms: int, new_uuid: Callable[[], bytes]) -> None:
        self.state = state
        self.now_ms = now_ms
        self.wall_ms = wall_ms
        self.new_uuid = new_uuid
        self.records: list[CoordinatorRecord] = []
        self.answers: Answers = []

    def answer(self, reply: Reply | None, response: Any) -> None:
        """Give `response` once everything that this turn decides is committed."""
        if reply is not None:
            self.answers.append((reply, response))


TimerAction: TypeAlias = Callable[[Turn], None]


class Deadlines:
    """A heap of what is due when. Sessions are looked at when they may have ended, not whenever they are renewed."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, object, TimerAction]] = []
        self._sequence = 0

    @property
    def next_ms(self) -> float:
        """The earliest deadline, in milliseconds; infinity if there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def at(self, deadline_ms: float, action: TimerAction) -> object:
        """Call `action(turn)` at `deadline_ms`; the owner compares the token to tell an outdated timer."""
        self._sequence += 1
        token = object()
        heapq.heappush(self._heap, (deadline_ms, self._sequence, token, action))
        return token

    def pop_due(self, now_ms: float) -> TimerAction | None:
        if self._heap and self._heap[0][0] <= now_ms:
            return heapq.heappop(self._heap)[3]
        return None

    def __len__(self) -> int:
        return len(self._heap)


__all__ = ["Answers", "Ask", "ClassicGroup", "Deadlines", "Member", "Reply", "TimerAction", "Turn"]
