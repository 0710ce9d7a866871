"""A broker's surroundings for schedules of a coordinator alone: timers, tasks and workers that the schedule steps.
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
    """The only wait of a task in these schedules: for its next turn."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class _Workers:
    """`odradek.env.ports.Workers`: a function acts at some later turn, and its caller goes on at another."""

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        await Pause()
        result = function(*args)
        await Pause()
        return result


class _Event:
    """The event of `Timers`, without a task that waits: the schedule fires due timers."""

    def set(self) -> None:
        """Do nothing: no task sleeps."""


class _Clock:
    """A clock that shows the schedule's time."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms

    def monotonic(self) -> float:
        return self._now_ms() / 1000

    def wall_ms(self) -> int:
        return START_MS + self._now_ms()

    async def sleep_until(self, deadline: float) -> None:
        """Let others have turns, for times in the past; schedules have no task that waits for a later time."""
        assert deadline <= self.monotonic(), "a task of a schedule waits for a time to come"
        await Pause()


class _Log:
    """A log that raises the bugs that coordinators only log when they go on without the request."""

    def info(self, event: str, /, **fields: Any) -> None:
        """Ignore a line of the log."""

    warning = info

    def error(self, event: str, /, **fields: Any) -> None:
        """Raise an error: no schedule causes an error in the log."""
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
    """The part of its broker that every coordinator uses (`CoordinatorHost`). For one life of the broker."""

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
        """Return threads for the log's disk."""
        return _Workers()

    def run_woken(self) -> None:
        """Run the actions that are due after a turn. After an append there are none: the schedule has the followers fetch."""
        while self.woken:
            woken, self.woken = self.woken, []
            for action in woken:
                action()

    def start_soon(
        self, function: Callable[..., Awaitable[Any]], *args: Any, name: str | None = None
    ) -> None:
        """Start a task (`TaskGroup`)."""
        coroutine = function(*args)
        assert isinstance(coroutine, Coroutine)
        self._coroutines.append(coroutine)

    def work(self, random: Random) -> None:
        """Let a task go on to its next wait."""
        if self._coroutines:
            coroutine = random.choice(self._coroutines)
            try:
                coroutine.send(None)
            except StopIteration:
                self._coroutines.remove(coroutine)

    def die(self) -> None:
        """End the process, and so its tasks."""
        for coroutine in self._coroutines:
            coroutine.close()
        self._coroutines.clear()
