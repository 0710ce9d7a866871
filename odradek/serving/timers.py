"""Deadlines of waiting requests: one heap and one task for a whole node, never a timeout scope per request."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from odradek.env.ports import Clock, Event, Log
from odradek.named_states import reached


class Timer:
    """One deadline. `cancel` is O(1). The heap drops cancelled timers when they are due, or when they outnumber live
    ones.
    """

    __slots__ = ("action", "deadline", "timers")

    def __init__(self, timers: Timers, deadline: float, action: Callable[[], Any]) -> None:
        self.timers = timers
        self.deadline = deadline
        self.action: Callable[[], Any] | None = action

    def cancel(self) -> None:
        if self.action is not None:
            self.action = None
            self.timers.note_cancelled()


class Timers:
    """A heap of timers, run by `run` (PORTED). Ties break by the order of creation."""

    def __init__(
        self,
        clock: Clock,
        new_event: Callable[[], Event],
        log: Log | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        """`log` gets the errors of actions; without it they go to the caller. `after` is called when due actions have
        run."""
        self._after = after
        self._clock = clock
        self._log = log
        self._new_event = new_event
        self._heap: list[tuple[float, int, Timer]] = []
        """Deadline, serial number, timer."""
        self._sequence = 0
        self._cancelled = 0
        self._earlier: Event = new_event()
        self._sleeping_until = float("inf")

    def at(self, deadline: float, action: Callable[[], Any]) -> Timer:
        """Call `action` on the loop once the clock reaches `deadline` (monotonic seconds)."""
        self._sequence += 1
        timer = Timer(self, deadline, action)
        heapq.heappush(self._heap, (deadline, self._sequence, timer))
        if deadline < self._sleeping_until:
            self._earlier.set()
        return timer

    def next_turn(self, action: Callable[[], Any]) -> None:
        """Call `action` soon, in a turn of its own, after other work has had the loop."""
        self.at(self._clock.monotonic(), action)

    def note_cancelled(self) -> None:
        """Count a cancelled timer, and keep the heap in proportion to the live ones."""
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def fire_due(self, now: float) -> None:
        """Run the actions whose deadline has come, earliest first. Drop cancelled timers at the front, so they cause
        no wake-up."""
        while self._heap and (self._heap[0][0] <= now or self._heap[0][2].action is None):
            timer = heapq.heappop(self._heap)[2]
            action, timer.action = timer.action, None
            if action is None:
                self._cancelled = max(0, self._cancelled - 1)
            else:
                self._act(action)

    def _act(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception:
            if self._log is None:
                raise
            reached("serving.timer_met_a_bug")
            # A bug in one request's timer must not stop the deadlines of all others.
            self._log.exception("timer.bug")

    async def run(self) -> None:
        """Run due actions without end; sleep until the next deadline, or until an earlier one is added."""
        while True:
            self.fire_due(self._clock.monotonic())
            if self._after is not None:
                self._after()
            self._earlier = self._new_event()
            if not self._heap:
                self._sleeping_until = float("inf")
                await self._earlier.wait()
                continue
            self._sleeping_until = self._heap[0][0]
            with self._clock.timeout_at(self._sleeping_until):
                await self._earlier.wait()
            self._sleeping_until = float("-inf")

    def statistics(self) -> dict[str, int]:
        """Count entries in the heap, cancelled ones included."""
        return {"timers": len(self._heap), "cancelled": self._cancelled}
