"""Deadlines of waiting requests: one heap and one task for a whole node, instead of a timeout scope for each request."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from odradek.env.ports import Clock, Event, Log
from odradek.named_states import reached


class Timer:
    """An action at a deadline. `cancel` is O(1). The heap drops cancelled timers when they are due, or when they
    outnumber the live ones.
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
    """All timers of a node in a heap; the task `run` executes them (PORTED). Equal deadlines run in the order of
    creation.
    """

    def __init__(
        self,
        clock: Clock,
        new_event: Callable[[], Event],
        log: Log | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        """`log` receives the errors of actions; without it they are raised to the caller. `after` is called after due
        actions have run.
        """
        self._after = after
        self._clock = clock
        self._log = log
        self._new_event = new_event
        self._heap: list[tuple[float, int, Timer]] = []
        """Entries of deadline, serial number, timer."""
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
        """Call `action` soon, in a separate turn, after other work has run on the loop."""
        self.at(self._clock.monotonic(), action)

    def note_cancelled(self) -> None:
        """Count a cancelled timer; rebuild the heap when cancelled timers outnumber the live ones."""
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def fire_due(self, now: float) -> None:
        """Run the actions whose deadline has come, earliest first. Drop cancelled timers at the front, so that they
        cause no wake-up.
        """
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
        """Run due actions for ever. Sleep until the next deadline, or until a timer with an earlier deadline is added."""
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
        """Count the timers in the heap, including cancelled ones."""
        return {"timers": len(self._heap), "cancelled": self._cancelled}
