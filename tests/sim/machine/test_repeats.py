"""Requests between nodes that arrive twice. The first copy arrives at once and gets no response, or arrives late on
the old connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import attrs
import pytest

from odradek.env.ports import Conn, ConnectionLost
from odradek.wire.api_keys import ApiKey
from sim.machine.links import LATE_SECONDS_MAX, Repeats
from sim.machine.weather import Weather
from sim.machine.world import World
from tests.sim.machine.two_hosts import pair, receive

ALWAYS = Weather(repeat_probability=1.0)
SEEDS = range(12)

Scenario = Callable[[World], Awaitable[None]]


def frame(key: ApiKey, correlation_id: int) -> bytes:
    """Make a request of ten bytes."""
    return (
        (10).to_bytes(4, "big")
        + key.to_bytes(2, "big")
        + bytes(2)
        + correlation_id.to_bytes(4, "big")
        + b"??"
    )


def answer(correlation_id: int) -> bytes:
    return (6).to_bytes(4, "big") + correlation_id.to_bytes(4, "big") + b"!!"


def in_world(scenario: Scenario, seed: int, weather: Weather = ALWAYS) -> World:
    world = World(seed, weather)
    if world.fabric.repeats is not None:
        world.fabric.repeats.nodes = frozenset(("a", "b"))
    world.run(scenario, world)
    return world


def test_a_request_arrives_at_once_without_its_answer_or_late_behind_its_successor() -> None:
    """The client's connection breaks. The server still gets the request, at once or after the repeated request."""
    ways: dict[str, int] = {}

    async def scenario(world: World) -> None:
        here, there = await pair(world)
        asked = frame(ApiKey.ALTER_PARTITION, 7)
        arrived: list[tuple[float, str]] = []

        async def serve(conn: Conn, name: str) -> None:
            assert await receive(conn, len(asked)) == asked
            arrived.append((world.now, name))
            conn.send([answer(7)])

        first = world.spawn(serve, there, "first")
        here.send([asked])
        with pytest.raises(ConnectionLost, match="reset on the way"):
            await receive(here, 1)
        here.close()
        repeats = world.fabric.repeats
        assert repeats is not None
        (way,) = repeats.counts
        ways[way] = ways.get(way, 0) + 1
        repeats.is_over = True
        again, there_again = await pair(world)
        again.send([asked])
        await serve(there_again, "second")
        assert await receive(again, 10) == answer(7)
        await first.wait()
        assert [name for _, name in arrived] == (
            ["first", "second"] if "answered" in way else ["second", "first"]
        )

    for seed in SEEDS:
        in_world(scenario, seed)
    assert set(ways) == {"alter_partition answered", "alter_partition late"}


def test_only_the_answer_to_the_request_is_lost() -> None:
    """Responses to earlier requests of the connection arrive. Only the response to the repeated request is lost."""

    async def scenario(world: World) -> None:
        here, there = await pair(world)
        earlier, asked = frame(ApiKey.VOTE, 1), frame(ApiKey.ENVELOPE, 2)
        repeats = world.fabric.repeats
        assert repeats is not None
        repeats.is_over = True
        here.send([earlier])
        repeats.is_over = False
        here.send([asked])
        assert await receive(there, len(earlier + asked)) == earlier + asked
        there.send([answer(1)])
        assert await receive(here, 10) == answer(1)
        there.send([answer(2)])
        with pytest.raises(ConnectionLost, match="reset on the way"):
            await receive(here, 1)
        with pytest.raises(ConnectionLost, match="reset on the way"):
            await receive(there, 1)

    for seed in SEEDS:
        in_world(scenario, seed)


def test_clients_and_logins_are_left_alone() -> None:
    """Only requests between different nodes are repeated, and requests of a login are not. In calm weather, nothing is
    repeated."""
    repeats = Repeats(Random(1), 1.0)
    repeats.nodes = frozenset(("a", "b"))
    for source, target, key in (
        ("client-1", "b", ApiKey.PRODUCE),
        ("a", "a", ApiKey.ALTER_PARTITION),
        ("a", "b", ApiKey.SASL_AUTHENTICATE),
        ("a", "b", ApiKey.API_VERSIONS),
    ):
        assert repeats.choose(source, target, frame(key, 1), 5.0) is None
    assert repeats.choose("a", "b", frame(ApiKey.VOTE, 1)[:-1], 5.0) is None, (
        "incomplete requests must not be repeated"
    )
    assert repeats.choose("a", "b", frame(ApiKey.VOTE, 1), 5.0) is not None
    assert repeats.choose("a", "b", frame(ApiKey.VOTE, 2), 5.5) is None, (
        "the same link must not repeat again so soon"
    )
    assert repeats.choose("b", "a", frame(ApiKey.VOTE, 2), 5.5) is not None
    assert World(1, Weather()).fabric.repeats is None


def test_a_forwarded_change_is_never_late() -> None:
    """A client's change has no sequence number, so a late copy would make it twice. Only other requests are late."""
    repeats = Repeats(Random(1), 1.0)
    repeats.nodes = frozenset(("a", "b"))
    found = [repeats.choose("a", "b", frame(ApiKey.ENVELOPE, 1), 10.0 * number) for number in range(50)]
    assert not any(each is None or each.is_late for each in found)
    found = [repeats.choose("a", "b", frame(ApiKey.VOTE, 1), 10.0 * number) for number in range(50, 150)]
    assert max(each.late_seconds for each in found if each is not None) > LATE_SECONDS_MAX[1]


def test_a_share_of_the_runs_has_it_and_it_can_be_left_out() -> None:
    """Some seeds draw repeats, from a separate random stream, so all other options stay the same."""
    drawn = [Weather().with_repeats(Random(f"{seed}/repeats?")) for seed in range(200)]
    with_repeats = [each for each in drawn if each.repeat_probability]
    assert 40 < len(with_repeats) < 110
    assert all(attrs.evolve(each, repeat_probability=0.0) == Weather() for each in drawn)
