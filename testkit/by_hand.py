"""Ports that a test controls directly, without the simulator: a clock, workers that run at once, and a log that keeps
its events.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import ParamSpec, Self, TypeVar

__all__ = ["NOW_MS", "InlineWorkers", "KeptLog", "ManualClock", "UnheardEvent", "finish"]

T = TypeVar("T")
P = ParamSpec("P")
NOW_MS = 1_700_000_000_000
"""The wall-clock time in milliseconds when a manual clock's monotonic time is 0."""


class ManualClock:
    """A clock (`odradek.env.ports.Clock`) whose time a test sets. A task that sleeps advances the clock to its
    wake-up time.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms
        self.jumped_ms = 0
        """The milliseconds that were added to the wall clock (negative: subtracted)."""

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def wall_ms(self) -> int:
        return NOW_MS + self.now_ms + self.jumped_ms

    async def sleep_until(self, deadline: float) -> None:
        self.now_ms = max(self.now_ms, round(deadline * 1000))

    def timeout_at(self, deadline: float) -> AbstractContextManager[None]:
        """Return a timeout that never fires, because time stands still."""
        return nullcontext()


class InlineWorkers:
    """Workers (`odradek.env.ports.Workers`) that run each function at once, in the caller's thread."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)


class UnheardEvent:
    """An event (`odradek.env.ports.Event`) for code that only sets it; no task waits for it."""

    def set(self) -> None:
        """Ignore the call, because no task waits for this event."""


class KeptLog:
    """A logger that keeps its lines. Fields passed to `bind` are dropped."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.fields: list[dict[str, object]] = []
        """The fields of each kept line, without the name of its event."""

    def bind(self, **_: object) -> Self:
        """Return this same log, because bound fields are dropped."""
        return self

    def info(self, event: str, /, **fields: object) -> None:
        """Keep the line of this event."""
        self.events.append(event)
        self.fields.append(fields)

    debug = warning = error = exception = info


def finish(coroutine: Coroutine[object, None, T]) -> T:
    """Run a coroutine to its end and return its result. It must only await ports that return at once."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("the coroutine waits, but may await only ports that return at once")
