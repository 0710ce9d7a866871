"""Values that a coordinator's parts pass to each other: a request, its answers, its deadlines. PURE."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from odradek.wire.errors import ErrorCode

A_co = TypeVar("A_co", covariant=True)


class Asks(Generic[A_co]):
    """A base class of requests to a coordinator. `A_co` is the type of the answer."""

    __slots__ = ()


class Reply(Protocol):
    """The receiver of the answer to one request."""

    def complete(self, response: Any, /) -> None: ...


Answers: TypeAlias = list[tuple[Reply, Any]]
"""Pairs of a reply and its response. The responses are sent when the decision that made them is committed."""


class Ask:
    """One request as a coordinator receives it: from a client, or `TimePasses` from the coordinator's own
    timer. `reply` is None if nobody waits for the answer.
    """

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
        """Returns True if the client may DESCRIBE the topic of this name. If `may_see` is None, the client may
        see all topics.
        """
        self.check_pattern = check_pattern
        """Raises the error that a worker has found in the request's regular expression. It is None if no worker
        has checked the expression.
        """
        self.asked_at = 0.0
        """The monotonic time, in seconds, at which the shard passed the request to its machine."""


_COORDINATORS_CODES = {
    ErrorCode.NOT_CONTROLLER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


def refused(ask: Ask, code: ErrorCode, refusal: Callable[[Ask, ErrorCode], Any]) -> Answers:
    """Build the answer to a request that the runtime refuses with `code`.

    `code` is one of the controller's error codes. If coordinators have their own code for the same error, the
    answer contains the coordinators' code instead.
    """
    return [] if ask.reply is None else [(ask.reply, refusal(ask, _COORDINATORS_CODES.get(code, code)))]


class TimePasses:
    """The request that a coordinator's own timer submits, so that due deadlines are handled.

    It has no answer.
    """


TimerAction: TypeAlias = Callable[[Any], None]
"""A function that is called when its deadline is due. Its argument is the machine's current turn."""


class Deadlines:
    """A heap of deadlines, each with the action to call.

    When a session is renewed, its entry in the heap stays where it is. When the entry is due, its action
    checks whether the session has really ended.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, object, TimerAction]] = []
        self._sequence = 0

    @property
    def next_ms(self) -> float:
        """The earliest deadline, in milliseconds; infinity if there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def at(self, deadline_ms: float, action: TimerAction) -> object:
        """Schedule a call of `action(turn)` for `deadline_ms`.

        Returns a token; the owner compares tokens to detect an outdated timer.
        """
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
