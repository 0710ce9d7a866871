"""A queue of actions that run after the current turn, a few in each turn, so that other clients are served in
between. PORTED.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from odradek.data_plane.coordination.shard import CoordinatorHost


class PacedActions:
    """A queue of actions.

    The actions run in order: the first ones after the current turn, the rest after later turns. For instance,
    a new coordinator may have to complete 100,000 transactions, which would block the event loop for seconds.
    """

    __slots__ = ("_host", "_is_set", "_per_turn", "_queue")

    def __init__(self, host: CoordinatorHost, per_turn: int) -> None:
        """`per_turn` is the most actions that run in one turn."""
        self._host = host
        self._per_turn = per_turn
        self._queue: deque[Callable[[], None]] = deque()
        self._is_set = False
        """True while a turn of this queue is scheduled."""

    def add(self, action: Callable[[], None]) -> None:
        self._queue.append(action)
        if not self._is_set:
            self._is_set = True
            self._host.woken.append(self._take_turn)

    def _take_turn(self) -> None:
        host, queue = self._host, self._queue
        # The broker runs each woken action separately, so a failure of one does not stop the rest.
        host.woken.extend(queue.popleft() for _ in range(min(self._per_turn, len(queue))))
        self._is_set = bool(queue)
        if queue:
            host.timers.next_turn(self._take_turn)

    def __len__(self) -> int:
        return len(self._queue)
