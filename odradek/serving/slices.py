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
from odradek.wire.structure import Message

T = TypeVar("T")

SLICE_UNITS = 1_000
"""The work of one slice, in partitions looked up and described: 3 to 5 ms."""
SCANT_UNITS = 100
"""The size of the first slice while other long work is under way, so that it holds the loop only shortly."""

Work: TypeAlias = Generator[int, None, T]
"""Yields units of work done, returns the result."""


class _Unfinished:
    __slots__ = ()


UNFINISHED = _Unfinished()


def run_slice(work: Work[T], units: int = SLICE_UNITS, counted: LongWork | None = None) -> T | _Unfinished:
    """Do one slice, and count its units in `counted` if that is given. Returns the result if that was the last slice."""
    left = units
    try:
        while left > 0:
            left -= next(work)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        if counted is not None:
            counted.described += units - left
    return UNFINISHED


def run_through(work: Work[T]) -> T:
    """Do all of it at once, in a worker thread, where it does not hold up the loop."""
    while True:
        result = run_slice(work)
        if not isinstance(result, _Unfinished):
            return result


async def finish(long_work: LongWork, work: Work[T]) -> T:
    """Do all of it, each slice in a turn of long work."""
    share = long_work.begin()
    while True:
        result = await share.on_loop(run_slice, work, SLICE_UNITS, long_work)
        if not isinstance(result, _Unfinished):
            finished: T = result
            return finished


def in_slices(long_work: LongWork, work: Work[Any]) -> Result:
    """Return the response if one slice is enough, otherwise a `Suspend` that goes on with it."""
    result = _first_slice(long_work, work)
    if isinstance(result, _Unfinished):
        return Suspend(lambda: finish(long_work, work), is_long=True)
    response: Message = result
    return response


def complete_in_slices(
    long_work: LongWork, tasks: TaskGroup, work: Work[Any], complete: Callable[[Any], None]
) -> None:
    """Work as `in_slices` does, for a request that is delayed: `complete` gets the answer, now or from a task."""
    result = _first_slice(long_work, work)
    if result is not UNFINISHED:
        complete(result)
        return

    async def go_on() -> None:
        complete(await finish(long_work, work))

    tasks.start_soon(go_on)


def _first_slice(long_work: LongWork, work: Work[T]) -> T | _Unfinished:
    return run_slice(work, SCANT_UNITS if long_work.is_busy else SLICE_UNITS, long_work)


__all__ = [
    "SCANT_UNITS",
    "SLICE_UNITS",
    "Work",
    "complete_in_slices",
    "finish",
    "in_slices",
    "run_slice",
    "run_through",
]
