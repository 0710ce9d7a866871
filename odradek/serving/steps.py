"""Requests that have to wait, written as generators: they yield what they wait for. PORTED.

Theory of operation
===================
A handler is written from top to bottom. Where it has to wait, it yields a `Wait`, receives the result, and continues.
It returns a response, or anything else that a handler may return. `StepDriver.begin` runs it to its first wait. Most
requests have none, and are answered at once. For the others the driver returns a `Suspend`, and then

* it schedules: each stretch after a `TURN` is a piece of long work, and so is each call `in_turn`
  (`odradek.serving.long_work`);
* it charges: the client of the request pays for pieces and for calls of workers;
* it keeps order: the connection dispatches no further request until the work has returned;
* it wakes tasks that have work after a stretch, as at the end of a connection's turn.

Work that sends requests to coordinators yields `Answers`. Then the request is delayed: its connection continues with
later requests, and the work continues when the last answer has come. If the connection is lost before that, the
generator is closed.

An error during a wait is raised at the `yield`. If the task of the connection is cancelled, the generator is closed.

Nothing else runs on the loop between two waits. During a wait anything may change: leadership, topics, limits. The
receive buffer is used again. So before its first wait, a handler copies its context (`Context.for_later`) and the
records of its request. A generator keeps all its variables while it waits. So a handler that waits long returns a
`Delayed` instead, which keeps only what it needs.
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
"""The units of work of one slice (a unit is a partition that is looked up and described): 3 to 5 ms."""
SCANT_UNITS = 100
"""The units of the first slice while other long work is under way."""


class _Workers(Protocol):
    """Worker threads: `ports.Workers`, or an object that counts their work."""

    async def run(self, function: Callable[..., T], *args: object) -> T: ...


class Pace:
    """The shares that one waiting request has in long work. The client of the request pays for them."""

    __slots__ = ("_shares", "long_work", "share")

    def __init__(self, long_work: LongWork) -> None:
        self.long_work = long_work
        self.share = long_work.begin()
        self._shares = {long_work: self.share}

    def share_of(self, long_work: LongWork) -> Share:
        """Return this request's share of a schedule of long work; a node has several schedules."""
        share = self._shares.get(long_work)
        if share is None:
            share = self._shares[long_work] = long_work.begin()
            # Only the first share of a request gets the payer from the connection, so copy it to the other
            # shares.
            share.payer = self.share.payer
        return share


class Answers(Delayed):
    """The answers to several requests, for example to coordinators. Work that yields this object continues when all
    answers have come, and receives them as a list in the order of the requests.

    Until the work has made its response, this object is the result of the client's request.
    """

    __slots__ = ("_driver", "_runner", "missing", "values")

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Any] = []
        self.missing = 0
        self._driver: StepDriver | None = None
        self._runner: Runner | None = None

    def receiver(self) -> Receiver:
        """Return a receiver for the answer to one more request."""
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
        """Store the work, which continues when the last answer has come."""
        self._driver, self._runner = driver, runner

    def _follow(self, driver: StepDriver, result: Result) -> None:
        """Complete this delayed request with the result that the work returns after its wait. If that result
        is itself delayed, complete the request later.
        """
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
"""A value that a generator yields. If it is a function, the driver awaits it, and sends its result to the generator. If
it is an `Answers`, the generator waits for the answers to other requests. If it is a number, it counts units of work
done, and the generator waits only if they fill a slice.
"""
Steps: TypeAlias = Generator[Wait, Any, T]
"""The work of a request: a generator that yields what it waits for, and returns the result."""
Work: TypeAlias = Generator[int, None, T]
"""The work of a description: a generator that yields units of work done, and returns the result."""


async def TURN(pace: Pace) -> None:  # noqa: N802  # handlers use it as a constant
    """End a stretch of a few milliseconds; the next one is a piece of long work. (Handlers yield this function; it is
    never called.)
    """
    raise AssertionError(
        "TURN must not be awaited: the driver itself waits for the turn, and then runs the work that follows"
    )


def until(deadline: float) -> Wait:
    """Make a wait until a time of the node's monotonic clock. With a time in the past, other requests get one turn
    each.
    """
    return lambda pace: pace.long_work.clock.sleep_until(deadline)


def asked(ask: Callable[[], Awaitable[Any]]) -> Wait:
    """Make a wait for the answer of another component, such as a coordinator."""
    return lambda pace: ask()


def in_worker(workers: _Workers, function: Callable[..., Any], *args: object) -> Wait:
    """Make a wait for a call in a thread of `workers`. The client pays for the processor time, even if the call raises."""

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
    """Make a wait for a call in the thread of this schedule of long work, when it is the request's turn."""
    return lambda pace: pace.share_of(long_work).in_worker(function, *args)


Runner: TypeAlias = "GeneratorType[Any, Any, None]"
_IDLE: list[Runner] = []
"""Runners that are free for reuse."""


def _run_all() -> Generator[Any, Any, None]:
    """Run works one after the other: receive a work, yield its waits, receive their results, and yield the work's
    result.

    A work that the driver ran directly would end with a `StopIteration`, which costs as much as the rest of this module
    for a small request. With `yield from`, this generator gets the result of the work without an exception. Its
    `gi_yieldfrom` is set while a work runs, so the driver sees whether the work has ended.
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
    """Do nothing: the default if no task must be woken after a stretch."""


class StepDriver:
    """Runs a node's request generators. After each stretch it calls `after_stretch`, which wakes tasks. `tasks` is
    needed for work that sends requests to coordinators.
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
        """Run work to its first wait. Return its result if it does not wait, otherwise the `Suspend` or the `Answers`
        by which it continues. `is_long` is passed to the `Suspend`.
        """
        runner = _IDLE.pop() if _IDLE else _new_runner()
        came: Any = runner.send(work)
        if runner.gi_yieldfrom is not None:
            return self.first_slice(runner, came, is_long)
        _IDLE.append(runner)
        result: Result = came
        return result

    def first_slice(self, runner: Runner, came: Any, is_long: bool = False) -> Result:
        """Run the first slice of started work. Return a result as `begin` does."""
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
        """Run work from its first wait to its end, or until it waits for `Answers`."""
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
                except Exception as error:  # noqa: BLE001  # the error is raised in the work
                    came = self._stretch(runner, runner.throw, error)
                else:
                    came = self._stretch(runner, runner.send, value)
        except BaseException:
            runner.close()
            raise
        result: Result = came
        return result

    def _stretch(self, runner: Runner, go_on: Callable[[Any], Any], value: object) -> Any:
        """Run the work to its next wait, or to its result."""
        try:
            return self._end_slice(runner, go_on(value), SLICE_UNITS)
        finally:
            self._after_stretch()

    def _end_slice(self, runner: Runner, came: Any, units: int) -> Any:
        """Run the work until it has done `units` of work, waits for something, or returns its result."""
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
    """Run the first slice of the work. Return the response if it is done, otherwise a `Suspend` that continues.

    State may change between two slices. So a description uses one image from beginning to end, and looks up the state
    of a partition only when it describes it.
    """
    return StepDriver(long_work).begin(work, is_long=True)


def run_through(work: Work[T]) -> T:
    """Do all the work at once and return its result. Call this in a worker thread, so that the event loop is not
    delayed.
    """
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
