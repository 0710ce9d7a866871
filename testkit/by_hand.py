"""Ports that a test controls by hand, without a world: a clock, workers that work at once, a log that keeps its events."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import ParamSpec, Self, TypeVar

__all__ = ["NOW_MS", "InlineWorkers", "KeptLog", "ManualClock", "UnheardEvent", "finish"]

T = TypeVar("T")
P = ParamSpec("P")
NOW_MS = 1_700_000_000_000
"""The wall clock's time at 0 of a manual clock."""


class ManualClock:
    """`odradek.env.ports.Clock` that a test moves; a task that sleeps on it moves it to its time of waking."""

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms
        self.jumped_ms = 0
        """The milliseconds by which the wall clock has jumped, forward or backward."""

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def wall_ms(self) -> int:
        return NOW_MS + self.now_ms + self.jumped_ms

    async def sleep_until(self, deadline: float) -> None:
        self.now_ms = max(self.now_ms, round(deadline * 1000))

    def timeout_at(self, deadline: float) -> AbstractContextManager[None]:
        """Return a timeout that does not fire, since time stands still."""
        return nullcontext()


class InlineWorkers:
    """`odradek.env.ports.Workers` that run everything at once."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)


class UnheardEvent:
    """`odradek.env.ports.Event` for parts that set one, where no task waits."""

    def set(self) -> None:
        """Ignore it, since no task sleeps."""


class KeptLog:
    """A logger that keeps its lines; fields that are bound to it are dropped."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.fields: list[dict[str, object]] = []
        """The fields of each line besides its event."""

    def bind(self, **_: object) -> Self:
        """Return this log: whose line it is plays no part."""
        return self

    def info(self, event: str, /, **fields: object) -> None:
        """Keep a line."""
        self.events.append(event)
        self.fields.append(fields)

    debug = warning = error = exception = info


def finish(coroutine: Coroutine[object, None, T]) -> T:
    """Run a coroutine that awaits only ports which never wait."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("the coroutine waits for something")
