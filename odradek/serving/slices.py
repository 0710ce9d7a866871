"""Answers about many things, built a few milliseconds at a time, so that one frame does not hold up other clients.
PORTED.

A handler writes its work as a generator: it yields how much it has just done and returns the response. Work that ends
within the first slice is answered at once. Longer work suspends the connection and takes turns
(`odradek.serving.long_work`); other connections are served between two slices. State may change meanwhile. So a generator
takes the image once, and looks up each partition when it comes to it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

from odradek.env.ports import TaskGroup
from odradek.serving.contract import Result, Suspend
from odradek.serving.long_work import LongWork
from odradek.serving.steps import SCANT_UNITS, SLICE_UNITS, StepDriver

T = TypeVar("T")

Work: TypeAlias = Generator[int, None, T]
"""Yields units of work done, returns the result."""


def run_through(work: Work[T]) -> T:
    """Do all of it at once, in a worker thread, where it does not hold up the loop."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        result: T = end.value
        return result


def in_slices(long_work: LongWork, work: Work[Any]) -> Result:
    """The response if one slice is enough, otherwise a `Suspend` that goes on with it."""
    return StepDriver(long_work, _wake_nobody).begin(work, is_long=True)


def complete_in_slices(
    long_work: LongWork, tasks: TaskGroup, work: Work[Any], complete: Callable[[Any], None]
) -> None:
    """Work as `in_slices` does, for a request that is delayed: `complete` gets the answer, now or from a task."""
    result = in_slices(long_work, work)
    if not isinstance(result, Suspend):
        complete(result)
        return
    run = result.run

    async def go_on() -> None:
        complete(await run())

    tasks.start_soon(go_on)


def _wake_nobody() -> None:
    """Do nothing: a description has no news for anybody."""


__all__ = ["SCANT_UNITS", "SLICE_UNITS", "Work", "complete_in_slices", "in_slices", "run_through"]
