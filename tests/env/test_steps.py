"""The driver of requests that wait: the size of slices, who is charged, the order of answers, and errors."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from odradek.serving.contract import Delayed, Suspend
from odradek.serving.long_work import LongWork
from odradek.serving.steps import (
    SCANT_UNITS,
    SLICE_UNITS,
    TURN,
    Answers,
    StepDriver,
    Steps,
    asked,
    in_turn,
    in_worker,
    until,
)
from tests.env.test_long_work import Inline, Meter, Payer, World

pytestmark = pytest.mark.trio


class Held(Inline):
    """A worker that starts when the test releases it."""

    def __init__(self, release: trio.Event) -> None:
        self._release = release

    async def run(self, function: Any, *args: Any) -> Any:
        await self._release.wait()
        return await super().run(function, *args)


class Stage:
    """A driver of work that records a `.` whenever the work begins another wait or ends, among the records of the work
    itself."""

    def __init__(self, tasks: trio.Nursery | None = None) -> None:
        self.world = World()
        self.done = self.world.done
        self.driver = StepDriver(self.world.work, lambda: self.done.append("."), tasks)
        self.asked: list[Any] = []
        """The receivers of answers, in the order in which the answers were asked for."""

    def ask(self, count: int, *behind: int) -> Steps[Any]:
        """Ask for `count` answers and return them. `behind` are the units of the work that follows the answers."""
        answers = Answers()
        for _ in range(count):
            self.asked.append(answers.receiver())
            yield 1
        try:
            came = yield answers
            yield from behind
        finally:
            self.done.append("ended")
        return came

    async def result(self, work: Steps[Any]) -> Any:
        """Return the result of work that waits."""
        begun = self.driver.begin(work)
        assert isinstance(begun, Suspend)
        return await begun.run()


async def test_work_without_a_wait_is_answered_at_once() -> None:
    """Work that never waits returns its result at once in place of a `Suspend`."""
    stage = Stage()

    def work(units: int) -> Steps[Any]:
        if units:
            yield units
        return "done"

    assert stage.driver.begin(work(0)) == "done"
    assert stage.driver.begin(work(SLICE_UNITS - 1)) == "done"
    assert isinstance(stage.driver.begin(work(SLICE_UNITS)), Suspend)
    assert stage.world.work.described == SLICE_UNITS - 1 + SLICE_UNITS


async def test_the_first_slice_is_short_while_others_have_long_work() -> None:
    """While other long work runs, a new request's first slice is short, so that it soon waits for a turn."""
    stage, release = Stage(), trio.Event()
    busy = LongWork(stage.world.clock, trio.Event, Held(release), Meter())

    def work() -> Steps[Any]:
        yield SCANT_UNITS
        return "done"

    driver = StepDriver(busy, lambda: None)
    assert driver.begin(work()) == "done"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(busy.begin().in_worker, sum, ())
        await trio.testing.wait_all_tasks_blocked()
        begun = driver.begin(work())
        release.set()
    assert isinstance(begun, Suspend)
    assert await begun.run() == "done"


async def test_each_wait_gives_what_came_of_it_and_wakes_others_behind_it() -> None:
    """When a wait ends, the work goes on with the result at once. When the work waits again or ends, the driver wakes
    other tasks."""
    stage = Stage()
    clock, done = stage.world.clock, stage.done

    async def answer() -> str:
        await trio.lowlevel.checkpoint()
        return "answered"

    def work() -> Steps[Any]:
        came = [(yield in_worker(Inline(), sum, (1, 2)))]
        done.append("worker")
        came.append((yield in_turn(stage.world.work.beside(Inline()), max, 1, 5)))
        done.append("turn of a worker")
        came.append((yield asked(answer)))
        done.append("answer")
        yield until(clock.now + 3.0)
        done.append("time")
        yield TURN
        done.append("turn")
        return came

    began = clock.now
    assert await stage.result(work()) == [3, 5, "answered"]
    assert done == ["worker", ".", "turn of a worker", ".", "answer", ".", "time", ".", "turn", "."]
    assert clock.now - began == pytest.approx(3.0)


async def test_the_client_that_asked_pays_for_all_that_others_do_for_it() -> None:
    """KIP-124: the client of a request is charged for the request's pieces on the loop and in workers, even if they
    fail."""
    stage = Stage()
    paid: list[tuple[float, float]] = []
    other: list[tuple[float, float]] = []
    beside = stage.world.work.beside(Inline())

    def use_processor(seconds: float) -> None:
        stage.world.meter.seconds += seconds

    def fail() -> None:
        use_processor(2.0)
        raise ValueError("no")

    def work() -> Steps[None]:
        yield TURN
        use_processor(1.0)
        stage.world.work.asker = Payer(other)
        with pytest.raises(ValueError, match="no"):
            yield in_worker(Inline(), fail)
        yield in_turn(beside, use_processor, 3.0)

    begun = stage.driver.begin(work())
    assert isinstance(begun, Suspend)
    stage.world.work.asker = Payer(paid)
    await begun.run()
    assert [seconds for seconds, _ in paid] == [1.0, 2.0, 3.0]
    assert not other


async def test_an_error_that_the_work_does_not_expect_ends_it() -> None:
    """If a wait fails, its error is raised at the work's `yield`. If the work does not catch the error, the connection
    gets it."""
    stage = Stage()

    def work() -> Steps[None]:
        try:
            yield asked(lambda: Inline().run(int, "x"))
        finally:
            stage.done.append("ended")

    with pytest.raises(ValueError, match="invalid literal"):
        await stage.result(work())
    assert stage.done == ["ended", "."]


@pytest.mark.parametrize("began", [True, False])
async def test_a_connection_that_is_lost_ends_the_work(began: bool) -> None:
    """If the connection is lost, the work is closed and releases everything, whether its wait has begun or not."""
    stage = Stage()

    def work() -> Steps[None]:
        try:
            yield asked(trio.sleep_forever)
        finally:
            stage.done.append("released")

    begun = stage.driver.begin(work())
    assert isinstance(begun, Suspend)
    if began:
        with trio.move_on_after(0) as scope:
            await begun.run()
        assert scope.cancelled_caught
    del begun
    assert stage.done == ["released"]


async def test_answers_come_in_the_order_of_the_questions() -> None:
    """The work gets its answers in the order of the questions, as soon as the last one has come."""
    stage = Stage()
    delayed = stage.driver.begin(stage.ask(3))
    assert isinstance(delayed, Delayed)
    for index in (2, 0):
        stage.asked[index].complete(index)
        assert delayed.response is None
    stage.asked[1].complete(1)
    assert delayed.response == [0, 1, 2]
    assert stage.done == ["ended"]


async def test_answers_that_are_there_are_not_waited_for() -> None:
    """If a coordinator has answered already, the work goes on without a delay, even after a full slice."""
    stage = Stage()

    def work(units: int) -> Steps[Any]:
        answers = Answers()
        answers.receiver().complete("known")
        yield units
        return (yield answers)

    assert stage.driver.begin(stage.ask(0)) == []
    assert stage.driver.begin(work(1)) == ["known"]
    assert await stage.result(work(SLICE_UNITS)) == ["known"]


async def test_long_work_behind_answers_goes_on_in_a_task() -> None:
    """Long work after an answer does one slice in the coordinator's turn and the rest in a task of its own."""
    async with trio.open_nursery() as nursery:
        stage = Stage(nursery)
        delayed = stage.driver.begin(stage.ask(1, SLICE_UNITS, SLICE_UNITS))
        assert isinstance(delayed, Delayed)
        stage.asked[0].complete("late")
        assert delayed.response is None
    assert delayed.response == ["late"]
    assert stage.done == [".", "ended", "."]


async def test_work_may_wait_for_answers_behind_other_waits() -> None:
    """Work may wait for answers after other waits, and several times. The connection goes on with its next request."""
    stage = Stage()

    def work() -> Steps[Any]:
        yield TURN
        first = yield from stage.ask(1)
        return first + (yield from stage.ask(2))

    delayed = await stage.result(work())
    assert isinstance(delayed, Delayed)
    for index in range(3):
        assert delayed.response is None
        stage.asked[index].complete(index)
    assert delayed.response == [0, 1, 2]


async def test_a_connection_that_is_lost_forgets_what_it_asked() -> None:
    """If the connection is lost, the work is closed, and a later answer is dropped."""
    stage = Stage()
    delayed = stage.driver.begin(stage.ask(1))
    assert isinstance(delayed, Delayed)
    delayed.abandon()
    assert stage.done == ["ended"]
    stage.asked[0].complete("late")
    assert delayed.response is None
