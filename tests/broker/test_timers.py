"""Deadlines of parked requests, on a clock that the test advances."""

from __future__ import annotations

import pytest
import structlog
import trio
from structlog.testing import LogCapture

from odradek.serving.timers import Timer, Timers
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.by_hand import ManualClock


class Flag:
    """An `odradek.env.ports.Event` on which no task waits."""

    def __init__(self) -> None:
        self.happened = False

    def set(self) -> None:
        self.happened = True

    def is_set(self) -> bool:
        return self.happened

    async def wait(self) -> None:
        raise AssertionError("no task runs these timers, so nothing may wait here")


def new_timers() -> Timers:
    return Timers(ManualClock(), Flag)


def test_timers_fire_by_deadline_then_by_creation() -> None:
    """Due timers fire in the order of deadlines, then of creation. Timers that are not due stay."""
    timers = new_timers()
    fired: list[str] = []
    for name, deadline in (("b1", 2.0), ("c", 3.0), ("a", 1.0), ("b2", 2.0), ("b3", 2.0)):
        timers.at(deadline, lambda name=name: fired.append(name))  # type: ignore[misc]  # a default binds the loop variable
    timers.fire_due(0.5)
    assert fired == []
    timers.fire_due(2.0)
    assert fired == ["a", "b1", "b2", "b3"]
    timers.fire_due(9.0)
    assert fired == ["a", "b1", "b2", "b3", "c"]
    assert timers.statistics() == {"timers": 0, "cancelled": 0}


@pytest.mark.reaches("serving.timer_met_a_bug")
def test_an_action_that_raises_harms_no_other() -> None:
    """If an action raises, the error is logged, and all other timers still fire."""
    captured = LogCapture()
    timers = Timers(ManualClock(), Flag, structlog.wrap_logger(None, processors=[captured]))
    fired: list[str] = []

    def raise_error() -> None:
        raise ZeroDivisionError("a bug")

    timers.at(1.0, raise_error)
    timers.at(2.0, lambda: fired.append("the next"))
    timers.fire_due(5.0)
    assert fired == ["the next"]
    assert [entry["event"] for entry in captured.entries] == ["timer.bug"]
    unlogged = new_timers()
    unlogged.at(1.0, raise_error)
    with pytest.raises(ZeroDivisionError):
        unlogged.fire_due(1.0)


def test_a_cancelled_timer_never_fires() -> None:
    """A timer never fires after it was cancelled, even by another timer at the same moment. Cancelling again does
    nothing."""
    timers = new_timers()
    fired: list[str] = []
    later: list[Timer] = []

    def cancel_later() -> None:
        fired.append("first")
        later[0].cancel()

    first = timers.at(1.0, cancel_later)
    later.append(timers.at(1.0, lambda: fired.append("later")))
    timers.at(1.0, lambda: fired.append("last"))
    timers.fire_due(1.0)
    later[0].cancel()
    first.cancel()
    assert fired == ["first", "last"]
    assert timers.statistics() == {"timers": 0, "cancelled": 0}


def test_what_is_cancelled_wakes_nobody() -> None:
    """Cancelled timers at the front are removed, so that the task sleeps until the next live deadline."""
    timers = new_timers()
    fired: list[str] = []
    cancelled = [timers.at(1.0 + number, lambda: fired.append("cancelled")) for number in range(5)]
    timers.at(9.0, lambda: fired.append("live"))
    for timer in cancelled:
        timer.cancel()
    timers.fire_due(0.0)
    assert timers.statistics() == {"timers": 1, "cancelled": 0}
    timers.fire_due(9.0)
    assert fired == ["live"]


def test_a_timer_may_enter_another_that_is_due() -> None:
    """If an action sets a timer that is already due, it fires in the same round."""
    timers = new_timers()
    fired: list[str] = []
    timers.at(1.0, lambda: timers.at(0.5, lambda: fired.append("newcomer")))
    timers.fire_due(1.0)
    assert fired == ["newcomer"]


@pytest.mark.parametrize("live", [0, 10, 500])
def test_the_heap_stays_in_proportion_to_the_live_timers(live: int) -> None:
    """Cancelled timers are removed in time, so that the heap never grows far beyond the live ones."""
    timers = new_timers()
    fired: list[int] = []
    for number in range(live):
        timers.at(1000.0 + number, lambda number=number: fired.append(number))  # type: ignore[misc]  # as above
    for _ in range(5_000):
        timers.at(500.0, lambda: fired.append(-1)).cancel()
        assert timers.statistics()["timers"] <= 2 * live + 66
    timers.fire_due(1e9)
    assert fired == list(range(live))


def test_an_earlier_newcomer_shortens_the_sleep() -> None:
    """A new timer that is due earlier than all others shortens the sleep of the task."""
    world = World(1, Weather())

    async def main() -> list[tuple[str, float]]:
        env = world.node_env("a")
        timers = Timers(env.clock, env.event)
        fired: list[tuple[str, float]] = []

        def note(name: str) -> None:
            fired.append((name, world.now))

        with env.clock.timeout_at(60.0):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(timers.run)
                await env.clock.sleep_until(1.0)
                timers.at(30.0, lambda: note("late"))
                await env.clock.sleep_until(2.0)
                timers.at(5.0, lambda: note("early"))
                await env.clock.sleep_until(10.0)
                timers.at(3.0, lambda: note("overdue"))
        return fired

    assert world.run(main) == [("early", 5.0), ("overdue", 10.0), ("late", 30.0)]
