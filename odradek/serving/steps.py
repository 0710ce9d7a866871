"""One way to wait: a request that cannot be answered at once is a generator of what it waits for. PORTED.

Theory of operation
===================
A handler writes its work from top to bottom. Where it has to wait, it yields a `Wait`, is sent what comes of it, and
goes on. It returns a response, or anything else that a handler may return. `StepDriver.begin` runs it to its first wait.
Most requests have none, and are answered at once. For the others the driver returns a `Suspend`, and then

* it paces: each stretch behind a `TURN` is a piece of long work, and so is each call `in_turn`
  (`odradek.serving.long_work`);
* it has the client pay: pieces and calls of workers are charged to the connection whose request it is;
* it keeps order: the connection dispatches no further request until the work has returned;
* it wakes whom a stretch has woken, as the end of a connection's turn does.

An error of a wait is raised where the generator has yielded. If the task of the connection is cancelled, the generator
is closed.

Nothing else runs on the loop between two waits. During a wait anything may change: leadership, topics, limits. The
receive buffer is used again. So before its first wait, a handler copies its context (`Context.for_later`) and the
records of its request. A generator keeps all its variables while it waits. So what waits long returns a `Delayed`
instead, which keeps only what it needs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

import attrs

from odradek.serving.contract import Result, Suspend
from odradek.serving.long_work import LongWork, Share, metered

T = TypeVar("T")

SLICE_UNITS = 1_000
"""The work of one slice, in partitions looked up and described: 3 to 5 ms."""
SCANT_UNITS = 100
"""The size of the first slice while other long work is under way."""


class _Workers(Protocol):
    """Threads: `ports.Workers`, or somebody who counts what they do."""

    async def run(self, function: Callable[..., T], *args: object) -> T: ...


class Pace:
    """The account of one request that waits: its shares of long work, all of them paid by its client."""

    __slots__ = ("_shares", "long_work", "share")

    def __init__(self, long_work: LongWork) -> None:
        self.long_work = long_work
        self.share = long_work.begin()
        self._shares: dict[LongWork, Share] = {}

    def share_of(self, long_work: LongWork) -> Share:
        """The share of long work with a thread of its own."""
        share = self._shares.get(long_work)
        if share is None:
            share = self._shares[long_work] = long_work.begin()
            # The first share has taken the payer.
            share.payer = self.share.payer
        return share


Wait: TypeAlias = int | Callable[[Pace], Awaitable[Any]]
"""Waits for something, at the pace of the request, and returns what the generator is sent. A number says how many units
of work are done: the generator waits if they fill a slice."""
Steps: TypeAlias = Generator[Wait, Any, T]
"""The work of a request: yields what it waits for, returns the result."""


async def TURN(pace: Pace) -> None:  # noqa: N802  # a constant to those who yield it
    """End a stretch of a few milliseconds. The next one is a piece of long work."""
    raise AssertionError("the driver takes a turn together with the stretch behind it")


def until(deadline: float) -> Wait:
    """Wait for a time of the node's clock. One in the past lets other requests have their turns once."""
    return lambda pace: pace.long_work.clock.sleep_until(deadline)


def asked(ask: Callable[[], Awaitable[Any]]) -> Wait:
    """Wait for an answer of somebody else, such as a coordinator."""
    return lambda pace: ask()


def in_worker(workers: _Workers, function: Callable[..., Any], *args: object) -> Wait:
    """Wait for a call in one of these threads. The client pays the processor time, also of a call that raises."""

    async def call(pace: Pace) -> Any:
        payer = pace.share.payer
        if payer is None:
            return await workers.run(function, *args)
        took: list[float] = []
        try:
            return await workers.run(metered, pace.long_work.meter, took, function, *args)
        finally:
            if took:
                payer(took[0], pace.long_work.clock.monotonic())

    return call


def in_turn(long_work: LongWork, function: Callable[..., Any], *args: object) -> Wait:
    """Wait for a call in the thread of this long work, when it is the request's turn."""
    return lambda pace: pace.share_of(long_work).in_worker(function, *args)


@attrs.frozen
class _Returned:
    """The generator is over."""

    result: Any


class StepDriver:
    """Runs the generators of a node's requests. `after_stretch` wakes those for whom a stretch has news."""

    __slots__ = ("_after_stretch", "_long_work")

    def __init__(self, long_work: LongWork, after_stretch: Callable[[], None]) -> None:
        self._long_work = long_work
        self._after_stretch = after_stretch

    def begin(self, work: Steps[Result], *, is_long: bool = False) -> Result:
        """The result of work that does not wait, else a `Suspend` that goes on with it. `is_long` is the answer's."""
        try:
            wait = next(work)
            if isinstance(wait, int):
                wait = self._end_slice(work, wait, SCANT_UNITS if self._long_work.is_busy else SLICE_UNITS)
        except StopIteration as end:
            result: Result = end.value
            return result
        return Suspend(partial(self._go_on, work, wait), is_long)

    async def _go_on(self, work: Steps[Result], wait: Wait) -> Result:
        """Drive the work from its first wait to its end."""
        pace = Pace(self._long_work)
        try:
            while True:
                if wait is TURN:
                    came = await pace.share.on_loop(self._stretch, work, work.send, None)
                else:
                    assert not isinstance(wait, int), "units end in a turn"
                    try:
                        value = await wait(pace)
                    except Exception as error:  # noqa: BLE001  # the work's own affair
                        came = self._stretch(work, work.throw, error)
                    else:
                        came = self._stretch(work, work.send, value)
                if isinstance(came, _Returned):
                    result: Result = came.result
                    return result
                wait = came
        finally:
            work.close()

    def _stretch(self, work: Steps[Result], go_on: Callable[[Any], Wait], value: object) -> Wait | _Returned:
        """Run to the next wait."""
        try:
            wait = go_on(value)
            return self._end_slice(work, wait, SLICE_UNITS) if isinstance(wait, int) else wait
        except StopIteration as end:
            return _Returned(end.value)
        finally:
            self._after_stretch()

    def _end_slice(self, work: Steps[Result], done: int, units: int) -> Wait:
        """Run to the end of a slice, of which so many units are done, or to another wait before it."""
        left = units - done
        try:
            while left > 0:
                wait = next(work)
                if not isinstance(wait, int):
                    return wait
                left -= wait
        finally:
            self._long_work.described += units - left
        return TURN


__all__ = ["TURN", "Pace", "StepDriver", "Steps", "Wait", "asked", "in_turn", "in_worker", "until"]
