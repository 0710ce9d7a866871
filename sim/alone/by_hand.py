"""The environment of a coordinator that is simulated without its broker. Timers, tasks and workers advance only when
the schedule steps them.

PORTED.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from random import Random
from typing import Any, TypeVar, cast

from odradek.data_plane.log.partition_log import PartitionLog
from odradek.env.agreed_clock import AgreedClock
from odradek.serving.timers import Timers
from sim.alone.replication_broker import START_MS, Broker
from sim.history import SafetyViolation

__all__ = ["ByHand", "Pause"]

T = TypeVar("T")


class Pause:
    """An awaitable for simulated tasks. A task that awaits it gives up control until the schedule steps the task
    again.
    """

    def __await__(self) -> Generator[None, None, None]:
        yield


class _Workers:
    """Simulated `odradek.env.ports.Workers`: the function runs at the task's next step, and the task resumes at the
    step after that.
    """

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        await Pause()
        result = function(*args)
        await Pause()
        return result


class _Event:
    """Stand-in for the event that would wake the task of `Timers`. Schedules have no such task: they fire due timers
    themselves.
    """

    def set(self) -> None:
        """Do nothing: no task waits for the event."""


class _Clock:
    """Clock that returns the schedule's virtual time."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms

    def monotonic(self) -> float:
        return self._now_ms() / 1000

    def wall_ms(self) -> int:
        return START_MS + self._now_ms()

    async def sleep_until(self, deadline: float) -> None:
        """Give up control once. Asserts that `deadline` has passed, since no task of a schedule may wait for a later
        time.
        """
        assert deadline <= self.monotonic(), "a task of a schedule waits for a time to come"
        await Pause()


class _Log:
    """Log that raises an exception for each error line. A coordinator with a bug would only log an error and go on."""

    def info(self, event: str, /, **fields: Any) -> None:
        """Ignore a log line below the level of errors."""

    warning = info

    def error(self, event: str, /, **fields: Any) -> None:
        """Raise `SafetyViolation`, unless the event is `coordinator.not_written`. A correct run logs no other error."""
        if event != "coordinator.not_written":
            raise SafetyViolation(f"{event}: {fields}")

    exception = error


class _Env:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.workers = _Workers()

    def new_uuid(self) -> bytes:
        return self.random.randbytes(16)


class ByHand:
    """The part of a broker that a coordinator uses (`CoordinatorHost`). Each run of the broker's process has its own
    object.
    """

    def __init__(self, broker: Broker, now_ms: Callable[[], int]) -> None:
        self.broker = broker
        self.clock = _Clock(now_ms)
        self.agreed_clock = AgreedClock(cast("Any", self.clock))
        self.log = _Log()
        self.env = _Env(Random(f"{broker.node_id}/{broker.life}"))
        self.tasks = self
        self.timers = Timers(cast("Any", self.clock), cast("Any", _Event))
        self.woken: list[Callable[[], None]] = []
        self._coroutines: list[Coroutine[Any, Any, Any]] = []

    def workers_for(self, log: PartitionLog) -> _Workers:
        """Return simulated workers. `log` is ignored."""
        return _Workers()

    def run_woken(self) -> None:
        """Run the actions that were deferred to the end of the current turn. An append defers no action here, since
        the schedule decides when followers fetch.
        """
        while self.woken:
            woken, self.woken = self.woken, []
            for action in woken:
                action()

    def start_soon(
        self, function: Callable[..., Awaitable[Any]], *args: Any, name: str | None = None
    ) -> None:
        """Add a task, as a `TaskGroup` does. The task runs when `work` steps it."""
        coroutine = function(*args)
        assert isinstance(coroutine, Coroutine)
        self._coroutines.append(coroutine)

    def work(self, random: Random) -> None:
        """Run one random task until its next `Pause`, provided that there is a task."""
        if self._coroutines:
            coroutine = random.choice(self._coroutines)
            try:
                coroutine.send(None)
            except StopIteration:
                self._coroutines.remove(coroutine)

    def die(self) -> None:
        """End the broker's process: close all its tasks."""
        for coroutine in self._coroutines:
            coroutine.close()
        self._coroutines.clear()
