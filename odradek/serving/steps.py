"""One way to wait: a request that cannot be answered at once is a generator of what it waits for. PORTED.

Theory of operation
===================
A handler writes its work from top to bottom. Where it has to wait, it yields a `Wait`, receives the result, and goes
on. It returns a response, or anything else that a handler may return. `StepDriver.begin` runs it to its first wait.
Most requests have none, and are answered at once. For the others the driver returns a `Suspend`, and then

* it paces: each stretch behind a `TURN` is a piece of long work, and so is each call `in_turn`
  (`odradek.serving.long_work`);
* it has the client pay: pieces and calls of workers are charged to the connection whose request it is;
* it keeps order: the connection dispatches no further request until the work has returned;
* it wakes the tasks for which a stretch has news, as the end of a connection's turn does.

Work that asks coordinators yields `Answers`. Then the request is delayed: its connection goes on with later requests, and
the work goes on when the last answer comes. If the connection is lost before that, the generator is closed.

An error of a wait is raised where the generator has yielded. If the task of the connection is cancelled, the generator
is closed.

Nothing else runs on the loop between two waits. During a wait anything may change: leadership, topics, limits.
The receive buffer is used again. So before its first wait, a handler copies its context (`Context.for_later`)
and the records of its request. A generator keeps all its variables while it waits. So a handler that waits long
returns a `Delayed` instead, which keeps only what it needs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from functools import partial
from types import GeneratorType
from typing import Any, Protocol, TypeAlias, TypeVar

from odradek.env.ports import TaskGroup
from odradek.serving.contract import Delayed, Receiver, Result, Suspend
from odradek.serving.long_work import LongWork, Share, metered

T = TypeVar("T")

SLICE_UNITS = 1_000
"""The work of one slice, in partitions looked up and described: 3 to 5 ms."""
SCANT_UNITS = 100
"""The size of the first slice while other long work is under way."""


class _Workers(Protocol):
    """Threads: `ports.Workers`, or an object that counts their work."""

    async def run(self, function: Callable[..., T], *args: object) -> T: ...


class Pace:
    """The account of one waiting request: its shares of long work, which its client pays."""

    __slots__ = ("_shares", "long_work", "share")

    def __init__(self, long_work: LongWork) -> None:
        self.long_work = long_work
        self.share = long_work.begin()
        self._shares = {long_work: self.share}

    def share_of(self, long_work: LongWork) -> Share:
        """Return the share of this long work, which may have a thread of its own."""
        share = self._shares.get(long_work)
        if share is None:
            share = self._shares[long_work] = long_work.begin()
            # Only the first share of a request is given the payer; the others charge the same one.
            share.payer = self.share.payer
        return share


class Answers(Delayed):
    """Answers to several questions. Work that yields them goes on when all have come. It gets a list of them in the
    order of the questions.

    A request that waits for them has them as its result, until the work has made its response.
    """

    __slots__ = ("_driver", "_runner", "missing", "values")

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Any] = []
        self.missing = 0
        self._driver: StepDriver | None = None
        self._runner: Runner | None = None

    def receiver(self) -> Receiver:
        """Return the receiver of the answer to the next question."""
        self.values.append(None)
        self.missing += 1
        return Receiver(partial(self._take, len(self.values) - 1))

    def _take(self, index: int, answer: object) -> None:
        self.values[index] = answer
        self.missing -= 1
        driver, runner = self._driver, self._runner
        if not self.missing and driver is not None and runner is not None:
            self._runner = None
            self._follow(driver, driver.first_slice(runner, runner.send(self.values)))

    def hold_up(self, driver: StepDriver, runner: Runner) -> None:
        """Keep work until the last answer comes."""
        self._driver, self._runner = driver, runner

    def _follow(self, driver: StepDriver, result: Result) -> None:
        """Answer as the work behind the wait does, now or later."""
        if isinstance(result, Suspend):
            assert driver.tasks is not None, "long work that asks other nodes must have tasks"
            driver.tasks.start_soon(self._follow_later, driver, result)
        elif not isinstance(result, Delayed):
            self.complete(result)
        elif result.response is None:
            result.answer = self
        else:
            self.complete(result.response)

    async def _follow_later(self, driver: StepDriver, suspend: Suspend) -> None:
        self._follow(driver, await suspend.run())

    def abandon(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()


Wait: TypeAlias = int | Callable[[Pace], Awaitable[Any]] | Answers
"""Waits for something, at the pace of the request, and returns what the generator is sent. A number says how many units
of work are done: the generator waits if they fill a slice."""
Steps: TypeAlias = Generator[Wait, Any, T]
"""The work of a request: yields what it waits for, returns the result."""
Work: TypeAlias = Generator[int, None, T]
"""The work of a description: yields units of work done, returns the result."""


async def TURN(pace: Pace) -> None:  # noqa: N802  # a constant to those who yield it
    """End a stretch of a few milliseconds. The next one is a piece of long work."""
    raise AssertionError("TURN must not be awaited: the driver joins it with the work that follows")


def until(deadline: float) -> Wait:
    """Wait for a time of the node's clock. A time in the past lets other requests have one turn each."""
    return lambda pace: pace.long_work.clock.sleep_until(deadline)


def asked(ask: Callable[[], Awaitable[Any]]) -> Wait:
    """Wait for the answer of another component, such as a coordinator."""
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


Runner: TypeAlias = "GeneratorType[Any, Any, None]"
_IDLE: list[Runner] = []
"""Runners without work."""


def _run_all() -> Generator[Any, Any, None]:
    """Run one work after the other: receive a work, yield its waits, receive their results, yield the work's result.

    The end of a generator raises `StopIteration`, which costs as much as everything else that this module does for a
    small request. A generator that delegates to another generator gets its result without that exception. While it
    delegates, `gi_yieldfrom` is set.
    """
    came = None
    while True:
        came = yield from (yield came)


def _new_runner() -> Runner:
    runner = _run_all()
    assert isinstance(runner, GeneratorType)
    next(runner)
    return runner


def _wake_nobody() -> None:
    """Do nothing: describing a state wakes no task."""


class StepDriver:
    """The driver of a node's request generators. `after_stretch` wakes the tasks for which a stretch has news.
    Work that asks coordinators needs `tasks`.
    """

    __slots__ = ("_after_stretch", "_long_work", "tasks")

    def __init__(
        self,
        long_work: LongWork,
        after_stretch: Callable[[], None] = _wake_nobody,
        tasks: TaskGroup | None = None,
    ) -> None:
        self._long_work = long_work
        self._after_stretch = after_stretch
        self.tasks = tasks

    def begin(self, work: Steps[Result], *, is_long: bool = False) -> Result:
        """Return the result of work that does not wait. Otherwise return the object that continues it: a `Suspend`,
        or the `Answers` that it waits for. `is_long` marks that object as long work."""
        runner = _IDLE.pop() if _IDLE else _new_runner()
        came: Any = runner.send(work)
        if runner.gi_yieldfrom is not None:
            return self.first_slice(runner, came, is_long)
        _IDLE.append(runner)
        result: Result = came
        return result

    def first_slice(self, runner: Runner, came: Any, is_long: bool = False) -> Result:
        """Run the first slice at once, and return what `begin` returns."""
        came = self._end_slice(runner, came, SCANT_UNITS if self._long_work.is_busy else SLICE_UNITS)
        if runner.gi_yieldfrom is None:
            if not _IDLE:
                _IDLE.append(runner)
        elif isinstance(came, Answers):
            came.hold_up(self, runner)
        else:
            return Suspend(partial(self._go_on, runner, came), is_long)
        result: Result = came
        return result

    async def _go_on(self, runner: Runner, came: Any) -> Result:
        """Drive work from its first wait to its end, or until it has asked coordinators."""
        pace = Pace(self._long_work)
        try:
            while runner.gi_yieldfrom is not None:
                if isinstance(came, Answers):
                    came.hold_up(self, runner)
                    break
                if came is TURN:
                    came = await pace.share.on_loop(self._stretch, runner, runner.send, None)
                    continue
                try:
                    value = await came(pace)
                except Exception as error:  # noqa: BLE001  # the work's own affair
                    came = self._stretch(runner, runner.throw, error)
                else:
                    came = self._stretch(runner, runner.send, value)
        except BaseException:
            runner.close()
            raise
        result: Result = came
        return result

    def _stretch(self, runner: Runner, go_on: Callable[[Any], Any], value: object) -> Any:
        """Run to the next wait, or to the result."""
        try:
            return self._end_slice(runner, go_on(value), SLICE_UNITS)
        finally:
            self._after_stretch()

    def _end_slice(self, runner: Runner, came: Any, units: int) -> Any:
        """Run to the end of a slice, to another wait before it, or to the result."""
        left = units
        try:
            while runner.gi_yieldfrom is not None:
                if isinstance(came, int):
                    left -= came
                    if left <= 0:
                        return TURN
                    came = runner.send(None)
                elif isinstance(came, Answers) and not came.missing:
                    came = runner.send(came.values)
                else:
                    break
        finally:
            self._long_work.described += units - left
        return came


def in_slices(long_work: LongWork, work: Work[Any]) -> Result:
    """Return the response if one slice is enough, else a `Suspend` that goes on with it.

    State may change between two slices. So a description takes the image once, and looks up each partition only when
    its turn comes.
    """
    return StepDriver(long_work).begin(work, is_long=True)


def run_through(work: Work[T]) -> T:
    """Do all the work at once, in a worker thread, where it does not hold up the loop."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        result: T = end.value
        return result


__all__ = [
    "SCANT_UNITS",
    "SLICE_UNITS",
    "TURN",
    "Answers",
    "Pace",
    "StepDriver",
    "Steps",
    "Wait",
    "Work",
    "asked",
    "in_slices",
    "in_turn",
    "in_worker",
    "run_through",
    "until",
]
