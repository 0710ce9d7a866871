"""Answers about many things, built a few milliseconds at a time, so that one frame holds up nobody. PORTED.

A handler describes its work as a generator: it yields how much it has just done and returns the response. What is done
within the first slice is answered at once, as if there were no slices. Longer work suspends the connection and lets
everybody else have a turn between two slices. State may change there: a generator takes the image once and looks each
partition up by itself, as requests that follow each other would.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

from data_plane.handlers.contract import Result, Suspend
from odradek.env.ports import Clock, TaskGroup

T = TypeVar("T")

SLICE_UNITS = 1_000
"""The work of one slice, in partitions looked up and described: 3 to 5 ms."""

Work: TypeAlias = Generator[int, None, T]
"""Yields units of work done, returns the result."""


class _Unfinished:
    __slots__ = ()


UNFINISHED = _Unfinished()


def run_slice(work: Work[T]) -> T | _Unfinished:
    """Do one slice; the result, if that was the last."""
    left = SLICE_UNITS
    try:
        while left > 0:
            left -= next(work)
    except StopIteration as end:
        result: T = end.value
        return result
    return UNFINISHED


def run_through(work: Work[T]) -> T:
    """Do all of it at once: in a worker, which nobody waits for."""
    while True:
        result = run_slice(work)
        if not isinstance(result, _Unfinished):
            return result


async def finish(clock: Clock, work: Work[T]) -> T:
    """Do all of it, with a turn for everybody else before each slice."""
    while True:
        await clock.sleep_until(0.0)
        result = run_slice(work)
        if not isinstance(result, _Unfinished):
            return result


def in_slices(clock: Clock, work: Work[Any]) -> Result:
    """The response if one slice is enough, otherwise a `Suspend` that goes on with it."""
    result = run_slice(work)
    return Suspend(lambda: finish(clock, work)) if result is UNFINISHED else result


def complete_in_slices(
    clock: Clock, tasks: TaskGroup, work: Work[Any], complete: Callable[[Any], None]
) -> None:
    """As `in_slices` for an answer that is waited for: `complete` gets it, now or from a task."""
    result = run_slice(work)
    if result is not UNFINISHED:
        complete(result)
        return

    async def go_on() -> None:
        complete(await finish(clock, work))

    tasks.start_soon(go_on)


__all__ = ["SLICE_UNITS", "Work", "complete_in_slices", "finish", "in_slices", "run_slice", "run_through"]
