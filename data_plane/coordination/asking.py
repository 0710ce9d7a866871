"""Values that a coordinator's parts pass to each other: a request, its answers, its deadlines. PURE."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from odradek.wire.errors import ErrorCode

A_co = TypeVar("A_co", covariant=True)


class Asks(Generic[A_co]):
    """A request to a coordinator; its answer has the type `A_co`."""

    __slots__ = ()


class Reply(Protocol):
    """The receiver of the answer to one request."""

    def complete(self, response: Any, /) -> None: ...


Answers: TypeAlias = list[tuple[Reply, Any]]
"""Replies with their responses, to be given when the decision that made them is committed."""


class Ask:
    """A request of a client (or None: time has passed) as a coordinator receives it."""

    __slots__ = (
        "asked_at",
        "check_pattern",
        "client_host",
        "client_id",
        "may_see",
        "reply",
        "request",
        "version",
        "wall_ms",
    )

    def __init__(
        self,
        request: Any,
        version: int,
        reply: Reply | None,
        wall_ms: int,
        client_id: str = "",
        client_host: str = "",
        may_see: Callable[[str], bool] | None = None,
        check_pattern: Callable[[str], None] | None = None,
    ) -> None:
        self.request = request
        self.version = version
        self.reply = reply
        self.wall_ms = wall_ms
        """The wall-clock time of the request, in milliseconds since 1970; ages are computed from it."""
        self.client_id = client_id
        self.client_host = client_host
        self.may_see = may_see
        """True for a topic that the client may DESCRIBE; None: it may see all."""
        self.check_pattern = check_pattern
        """Raises the error that a worker has found in the request's regular expression; None: it is still to be read."""
        self.asked_at = 0.0
        """Monotonic seconds at which the coordinator took the request for a decision."""


_COORDINATORS_CODES = {
    ErrorCode.NOT_CONTROLLER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


def refused(ask: Ask, code: ErrorCode, refusal: Callable[[Ask, ErrorCode], Any]) -> Answers:
    """Answer a request that the runtime refuses. The runtime's codes are for controllers, so translate them for a
    coordinator.
    """
    return [] if ask.reply is None else [(ask.reply, refusal(ask, _COORDINATORS_CODES.get(code, code)))]


class TimePasses:
    """The request of a coordinator's own timer. Not answered."""


TimerAction: TypeAlias = Callable[[Any], None]
"""Called with the turn of the machine in which it is due."""


class Deadlines:
    """A heap of deadlines. A session is checked when it may have ended, not whenever it is renewed."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, object, TimerAction]] = []
        self._sequence = 0

    @property
    def next_ms(self) -> float:
        """The earliest deadline, in milliseconds; infinity if there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def at(self, deadline_ms: float, action: TimerAction) -> object:
        """Call `action(turn)` at `deadline_ms`. Returns a token, by which the owner detects an outdated timer."""
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
