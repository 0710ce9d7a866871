"""Responses that wait behind a delayed one: limited in bytes, by connection and in total, and always in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio

from odradek.node.connections.answers import (
    HELD_BYTES_MAX,
    HELD_IN_ALL_BYTES_MAX,
    HELD_SECONDS_MAX,
    HELD_SHARE_BYTES,
    PARKED_MAX,
)
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.virtual import Client
from tests.node.requests.test_connection_loop import LARGE_BYTES, Node, framed, play

Connect = Callable[[], Awaitable[Client]]


def large(text: bytes) -> bytes:
    return text.ljust(LARGE_BYTES, b".")


def held(node: Node) -> int:
    return node.server.statistics()["held_bytes"]


def test_the_bytes_behind_a_delayed_answer_are_bounded() -> None:
    """A connection's responses that wait behind a delayed one take at most `HELD_BYTES_MAX` and one response more."""

    async def script(world: World, node: Node, connect: Connect) -> None:
        client = await connect()
        await client.send(framed(b"park:a") + b"".join(framed(b"large:%d" % serial) for serial in range(200)))
        await world.sleep(1)
        assert HELD_BYTES_MAX < held(node) <= HELD_BYTES_MAX + LARGE_BYTES + 8
        assert len(node.seen) < 20
        node.waiting[b"a"].complete(b"a")
        assert await client.answer() == b"a"
        for serial in range(200):
            assert await client.answer() == large(b"%d" % serial)
        assert (held(node), node.services.held.bytes_held) == (0, 0)

    play(script)


def test_ranges_of_files_count_with_their_length() -> None:
    """A waiting response pins its range of a log file, and the range counts with its full length."""

    async def script(world: World, node: Node, connect: Connect) -> None:
        node.file.append(bytes(1 << 20))
        client = await connect()
        await client.send(framed(b"wait:a") + framed(b"file:1048576") * 50)
        await world.sleep(1)
        assert node.seen.count(b"file:1048576") == HELD_BYTES_MAX >> 20
        node.waiting[b"a"].complete(b"a")
        assert await client.answer() == b"a"
        for _ in range(50):
            assert len(await client.answer()) == 1 << 20
        assert node.file._references == 1  # type: ignore[attr-defined]  # the number of pins

    play(script)


def test_requests_behind_a_parked_one_are_dispatched() -> None:
    """Requests behind a parked fetch are dispatched at once. A connection may have at most `PARKED_MAX` parked
    fetches."""

    async def script(world: World, node: Node, connect: Connect) -> None:
        client = await connect()
        for serial in range(PARKED_MAX - 1):
            await client.send(framed(b"park:%d" % serial) + framed(b"echo:%d" % serial))
        await world.sleep(0.1)
        assert node.seen[-1] == b"echo:%d" % (PARKED_MAX - 2)
        for serial in range(PARKED_MAX - 1, 3 * PARKED_MAX):
            await client.send(framed(b"park:%d" % serial))
        await world.sleep(0.1)
        assert node.server.statistics()["parked"] == len(node.waiting) == PARKED_MAX
        for serial in range(3 * PARKED_MAX):
            node.waiting[b"%d" % serial].complete(b"parked")
            assert await client.answer() == b"parked"
            if serial < PARKED_MAX - 1:
                assert await client.answer() == b"%d" % serial
            await world.sleep(0.1)
            assert node.server.statistics()["parked"] <= PARKED_MAX

    play(script)


def test_what_all_connections_hold_is_bounded() -> None:
    """The waiting responses of all connections reach their limit. The connections with the largest shares are no
    longer read, and are closed later. Other connections stay open."""
    count = 3 * HELD_IN_ALL_BYTES_MAX // HELD_BYTES_MAX

    async def script(world: World, node: Node, connect: Connect) -> None:
        modest = await connect()
        await modest.send(framed(b"park:modest") + framed(b"echo:before"))
        clients = [await connect() for _ in range(count)]
        for number, client in enumerate(clients):
            await client.send(framed(b"park:%d" % number) + framed(b"large:") * 100)
        await world.sleep(1)
        assert node.services.held.is_full
        assert held(node) <= HELD_IN_ALL_BYTES_MAX + count * (HELD_SHARE_BYTES + LARGE_BYTES)
        await modest.send(framed(b"echo:after"))
        await world.sleep(0.1)
        assert b"echo:after" in node.seen
        await world.sleep(HELD_SECONDS_MAX + 10)
        assert held(node) <= HELD_IN_ALL_BYTES_MAX
        assert "connection.evicted" in node.log.events
        node.waiting[b"modest"].complete(b"done")
        assert [await modest.answer() for _ in range(3)] == [b"done", b"before", b"after"]

    play(script)


def test_who_is_held_back_by_others_goes_on_when_they_leave() -> None:
    """A connection waits for memory that other connections use. It continues when they release this memory."""
    count = HELD_IN_ALL_BYTES_MAX // HELD_BYTES_MAX + 1

    async def script(world: World, node: Node, connect: Connect) -> None:
        clients = [await connect() for _ in range(count)]
        for number, client in enumerate(clients):
            await client.send(framed(b"park:%d" % number) + framed(b"large:") * 100)
        await world.sleep(1)
        last = await connect()
        await last.send(framed(b"park:last") + framed(b"large:1") + framed(b"large:2"))
        await world.sleep(1)
        assert b"large:2" not in node.seen
        for number in range(count):
            node.waiting[b"%d" % number].complete(b"")
        await world.sleep(1)
        assert b"large:2" in node.seen

    play(script)


@pytest.mark.parametrize("seed", range(12))
def test_answers_are_in_order_whatever_waits(seed: int) -> None:
    """Random requests are completed in random order over several connections. Each connection gets its responses in
    order, and in the end no memory is counted."""
    random = Random(seed)
    commands = (b"echo", b"large", b"wait", b"park", b"suspend", b"file")

    async def script(world: World, node: Node, connect: Connect) -> None:
        node.file.append(bytes(1 << 21))
        ended: list[int] = []

        async def talk(number: int) -> None:
            client = await connect()
            expected: list[bytes] = []
            stream = bytearray()
            for serial in range(random.randint(1, 150)):
                command = random.choice(commands)
                text = b"%d.%d" % (number, serial)
                if command == b"file":
                    text = b"%d" % random.choice((1, 3000, 1 << 21))
                    expected.append(bytes(int(text)))
                else:
                    expected.append(large(text) if command == b"large" else text)
                stream += framed(command + b":" + text)

            async def send() -> None:
                while stream:
                    size = random.choice((1, 5, 100, 2000))
                    await client.send(bytes(stream[:size]))
                    del stream[:size]
                    await world.sleep(random.random() / 50)

            leaves_at = len(expected) if random.random() < 0.7 else random.randrange(len(expected))
            async with trio.open_nursery() as tasks:
                tasks.start_soon(send)
                for answer in expected[:leaves_at]:
                    assert await client.answer() == answer
                tasks.cancel_scope.cancel()
            client.conn.close()
            ended.append(number)

        async def complete() -> None:
            done: set[bytes] = set()
            while True:
                await world.sleep(random.random() / 20)
                due = sorted(text for text in node.waiting if text not in done)
                for text in random.sample(due, min(len(due), random.randint(0, 4))):
                    done.add(text)
                    if text not in node.abandoned:
                        node.waiting[text].complete(text)
                for event in node.suspended.values():
                    if random.random() < 0.5:
                        event.set()

        async with trio.open_nursery() as tasks:
            tasks.start_soon(complete)
            async with trio.open_nursery() as talks:
                for number in range(6):
                    talks.start_soon(talk, number)
            await world.sleep(5)
            tasks.cancel_scope.cancel()
        statistics = node.server.statistics()
        assert len(ended) == 6
        assert (statistics["connections"], node.services.held.statistics()) == (
            0,
            {"bytes": 0, "parked": 0, "waiting": 0},
        )
        assert node.file._references == 1  # type: ignore[attr-defined]  # the number of pins
        assert "connection.bug" not in node.log.events

    play(
        script,
        weather=Weather(split_probability=0.2, short_recv_probability=0.2, socket_buffer_bytes=100_000),
    )
