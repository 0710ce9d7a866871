"""Virtual time: the clock that drives trio without sleeping, and the monotonic and wall clock that each node
sees. SHELL.

When no task can run, trio asks its clock how long to sleep until the next deadline. This clock never sleeps. It
executes the next events of the agenda (a segment arrives, a timer fires, a disk answers) until an event wakes a task.
Then it returns 0. Waits of the nodes use timers of the agenda, whose order is fixed. Only tests use trio's own
deadlines, because trio orders equal deadlines by object identity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sized
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

import trio
from trio._core._run import GLOBAL_RUN_CONTEXT

from odradek.env.ports import Scope
from sim.machine.events import Agenda, Owner, Timer
from sim.machine.waiting import Signal, Waiter, checkpoint

EVENTS_WITHOUT_A_TASK_MAX = 1000
"""The largest number of successive events without a wake of a task. After this number of events control returns to
trio.
"""
ROUNDS_WITHOUT_TIME_MAX = 200_000
"""How many rounds of trio's loop may pass without any advance of virtual time."""
EPOCH_MS = 1_750_000_000_000
"""The wall-clock time at the start of a simulation, in milliseconds since 1970: June 2025."""


class VirtualClock(trio.abc.Clock):
    """A clock for trio that is driven by an agenda of events.

    `on_stall` is called with a reason when the agenda is empty, or when tasks run on and on without an advance of
    time.
    """

    def __init__(self, agenda: Agenda, on_stall: Callable[[str], None]) -> None:
        self._agenda = agenda
        self._on_stall = on_stall
        self.now = 0.0
        """The virtual time at trio's last query, in seconds."""
        self.rounds = 0
        """How many times trio has queried the clock since time last advanced: once in each round of its loop."""
        self.stopped = False
        """Set at the end of a run. Trio then shuts down by real wake-ups, during which virtual time must stop."""
        self._runnable: Sized | None = None
        """The tasks that trio is about to run."""

    def start_clock(self) -> None:
        """Do nothing: only events advance virtual time."""

    def current_time(self) -> float:
        now = self._agenda.now
        if now != self.now:
            self.now, self.rounds = now, 0
        self.rounds += 1
        if self.rounds == ROUNDS_WITHOUT_TIME_MAX and not self.stopped:
            self._on_stall(f"{self.rounds} rounds without time going on")
        return now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        if self.stopped:
            return 0.0
        runnable = self._runnable
        if runnable is None:
            runnable = self._runnable = GLOBAL_RUN_CONTEXT.runner.runq
        advance = self._agenda.advance
        for _ in range(EVENTS_WITHOUT_A_TASK_MAX):
            if not advance(deadline):
                if deadline == math.inf:
                    self._on_stall("nothing can happen any more")
                else:
                    self._agenda.now = max(self._agenda.now, deadline)
                break
            if runnable:
                break
        return 0.0


class ClockOwner(Owner, Waiter, Protocol):
    """The part of a node that its clock uses."""


class _Timeout:
    """`odradek.env.ports.Scope` with a timer of the agenda."""

    __slots__ = ("_agenda", "_deadline", "_owner", "_scope", "_timer")

    def __init__(self, agenda: Agenda, owner: ClockOwner, deadline: float) -> None:
        self._agenda = agenda
        self._owner = owner
        self._deadline = deadline
        self._scope = trio.CancelScope()
        self._timer: Timer | None = None

    @property
    def expired(self) -> bool:
        return self._scope.cancelled_caught

    def __enter__(self) -> _Timeout:
        self._scope.__enter__()
        if self._deadline <= self._agenda.now:
            self._scope.cancel()
        elif self._deadline < math.inf:
            self._timer = self._agenda.at(self._deadline, self._expire, self._owner)
        return self

    def _expire(self) -> None:
        self._owner.wakes += 1
        self._scope.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        return self._scope.__exit__(kind, error, traceback)


class NodeClock:
    """`odradek.env.ports.Clock` for one node.

    Three attributes can be set. `rate` is the speed of the monotonic clock. `wall_offset_ms` is the error of the wall
    clock, and `wall_drift` the growth of that error.
    """

    def __init__(self, agenda: Agenda, owner: ClockOwner, *, rate: float) -> None:
        self._agenda = agenda
        self._owner = owner
        self._rate = rate
        self._virtual_base = agenda.now
        self._local_base = agenda.now
        self.wall_offset_ms = 0
        self._drift = 0.0
        self._drifted_base = self._drifted_seconds = 0.0

    @property
    def wall_drift(self) -> float:
        """The fraction by which the wall clock runs faster than the monotonic clock: 0.01 is one second in a hundred."""
        return self._drift

    @wall_drift.setter
    def wall_drift(self, drift: float) -> None:
        self._drifted_seconds, self._drifted_base = self._drifted(), self.monotonic()
        self._drift = drift

    def _drifted(self) -> float:
        """Compute how many seconds the wall clock has drifted."""
        return self._drifted_seconds + (self.monotonic() - self._drifted_base) * self._drift

    @property
    def rate(self) -> float:
        return self._rate

    @rate.setter
    def rate(self, rate: float) -> None:
        self._local_base, self._virtual_base = self.monotonic(), self._agenda.now
        self._rate = rate

    def monotonic(self) -> float:
        return self._local(self._agenda.now)

    def _local(self, virtual: float) -> float:
        return self._local_base + (virtual - self._virtual_base) * self._rate

    def _virtual(self, local: float) -> float:
        """Compute the first virtual time at which `monotonic` returns `local`."""
        if local == math.inf:
            return local
        virtual = self._virtual_base + (local - self._local_base) / self._rate
        while self._local(virtual) < local:
            virtual = math.nextafter(virtual, math.inf)
        return virtual

    def wall_ms(self) -> int:
        return EPOCH_MS + int((self.monotonic() + self._drifted()) * 1000) + self.wall_offset_ms

    async def sleep_until(self, deadline: float) -> None:
        if self.monotonic() >= deadline:
            await checkpoint()
            return
        signal = Signal(self._owner)
        while self.monotonic() < deadline:  # Wait again only if the clock's rate was changed during the wait.
            timer = self._agenda.at(self._virtual(deadline), signal.wake, self._owner)
            try:
                await signal.wait()
            finally:
                timer.cancel()

    def timeout_at(self, deadline: float) -> AbstractContextManager[Scope]:
        return _Timeout(self._agenda, self._owner, self._virtual(deadline))
