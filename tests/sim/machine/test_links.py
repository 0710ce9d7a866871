"""Faults of links and connections that the hosts at both ends are not notified of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import pytest

from odradek.env.ports import ConnectionLost
from sim.machine.weather import Weather
from sim.machine.world import World
from tests.sim.machine.two_hosts import pair, receive

CALM = Weather()

Scenario = Callable[[World], Awaitable[None]]


def in_world(scenario: Scenario, weather: Weather = CALM, seed: int = 1) -> None:
    world = World(seed, weather)
    world.run(scenario, world)


def test_a_narrow_link_lets_through_so_many_bytes_per_second() -> None:
    """A narrow link limits the bandwidth of all connections together, in one direction."""

    async def scenario(world: World) -> None:
        here, there = await pair(world)
        other, other_there = await pair(world)
        world.fabric.narrow("a", "b", 1000.0)
        began = world.now
        here.send([bytes(2000)])
        other.send([bytes(1000)])
        await receive(there, 2000)
        assert world.now - began == pytest.approx(2.0, abs=0.01)
        await receive(other_there, 1000)
        assert world.now - began == pytest.approx(3.0, abs=0.01)
        there.send([bytes(50_000)])
        await receive(here, 50_000)
        assert world.now - began == pytest.approx(3.0, abs=0.01)

    in_world(scenario)


def test_lost_segments_arrive_later_and_in_order() -> None:
    """A lost segment delays the stream, as TCP retransmits it. All bytes arrive in order."""

    async def scenario(world: World) -> None:
        here, there = await pair(world)
        began = world.now
        for number in range(100):
            here.send([bytes([number])])
        assert await receive(there, 100) == bytes(range(100))
        assert world.now - began > 0.2

    in_world(scenario, attrs.evolve(CALM, loss_probability=0.3))


def test_a_reset_on_the_way_ends_both_ends() -> None:
    """A reset on the way drops the data in flight and raises `ConnectionLost` at both ends."""

    async def scenario(world: World) -> None:
        here, there = await pair(world)
        here.send([b"x"])
        for conn in (there, here):
            with pytest.raises(ConnectionLost, match="reset on the way"):
                await receive(conn, 1)

    in_world(scenario, attrs.evolve(CALM, reset_probability=1.0))


@pytest.mark.parametrize(("how", "seconds"), [("refuses", 1.0), ("swallows", 61.0)])
def test_a_closed_link_lets_nobody_begin(how: str, seconds: float) -> None:
    """On a closed link, new connections are refused or time out. Open connections keep working."""

    async def scenario(world: World) -> None:
        here, there = await pair(world)
        world.fabric.close_link("a", "b", "refuses" if how == "refuses" else "swallows")
        began = world.now
        with pytest.raises(ConnectionLost):
            await pair(world)
        assert world.now - began < seconds
        here.send([b"x"])
        assert await receive(there, 1) == b"x"
        world.fabric.close_link("a", "b", None)
        await pair(world)

    in_world(scenario)


def test_a_forgotten_connection_is_silent_for_a_quarter_of_an_hour() -> None:
    """On a half-open connection the sender gives up after a quarter of an hour, while a reader waits forever."""

    async def scenario(world: World) -> None:
        here, there = await pair(world)
        here.send([b"lost"])
        assert world.fabric.sever("a", "b") == 1
        there.close()
        await world.sleep(60)
        here.send([b"more"])
        began = world.now
        with pytest.raises(ConnectionLost, match="timed out"):
            await receive(here, 1)
        assert 900 < world.now - began < 1100
        again, there_again = await pair(world)
        again.send([b"new"])
        assert await receive(there_again, 3) == b"new"

    in_world(scenario)


def test_what_was_left_behind_may_be_overtaken() -> None:
    """After a reconnect, bytes of the old connection may arrive after those of the new one."""
    overtaken = 0

    async def scenario(world: World) -> None:
        nonlocal overtaken
        here, there = await pair(world)
        here.send([b"old"])
        here.close()
        again, there_again = await pair(world)
        again.send([b"new"])
        assert await receive(there_again, 3) == b"new"
        new_at = world.now
        assert await receive(there, 4) == b"old"
        overtaken += world.now > new_at

    for seed in range(5):
        in_world(scenario, attrs.evolve(CALM, late_probability=1.0), seed)
    assert overtaken == 5
