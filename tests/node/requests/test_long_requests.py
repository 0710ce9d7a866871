"""Requests with too many elements for one turn: they are decoded and encoded in a worker, in order, beside other work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from odradek.env.ports import FileClosed
from odradek.wire.codec import ELEMENTS_AT_ONCE
from odradek.wire.errors import MalformedMessage, TooManyElements
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.virtual import Client
from tests.node.requests.test_connection_loop import Entry, Node, framed, play

SLOW = Weather(worker_seconds=(0.05, 0.05))
LENGTH = ELEMENTS_AT_ONCE + 100
Connect = Callable[[], Awaitable[Client]]


class LongEntry(Entry):
    """An API for which a text that ends in a dot has too many elements for the loop.

    A `bad` text cannot be decoded, and a `worse` response fails to encode.
    """

    def __init__(self, handle: Callable[[Any, bytes], Any]) -> None:
        super().__init__(handle)
        self.decoded_beside: list[bytes] = []
        self.encoded: list[bytes] = []

    def decode_large(self, frame: memoryview, offset: int) -> tuple[bytes, int]:  # type: ignore[override]  # an instance method
        if bytes(frame[-1:]) == b".":
            raise TooManyElements("too many")
        return self.decode(frame, offset)

    def decode_all(self, frame: memoryview, offset: int) -> tuple[bytes, int]:
        text = bytes(frame[offset:])
        if text.startswith(b"bad"):
            raise MalformedMessage("bad to the end")
        self.decoded_beside.append(text.rstrip(b"."))
        return text.rstrip(b"."), ELEMENTS_AT_ONCE + 1

    def encode(  # type: ignore[override]  # an instance method
        self, frame: bytearray, response: Any, spills: list[tuple[int, Any]], errors: dict[int, int]
    ) -> None:
        self.encoded.append(response)
        if response == b"worse":
            raise ZeroDivisionError
        errors[7] = errors.get(7, 0) + 1
        Entry.encode(frame, response, spills, errors)


def many(text: bytes) -> bytes:
    return framed(text.ljust(LENGTH, b"."))


def run(script: Any) -> tuple[Node, LongEntry]:
    node = play(script, weather=SLOW, entry_type=LongEntry)
    assert isinstance(node.entry, LongEntry)
    return node, node.entry


def test_a_connection_goes_on_when_its_long_request_is_handled() -> None:
    """Long requests and their responses keep the order of the connection."""

    async def script(world: World, node: Node, connect: Connect) -> None:
        client = await connect()
        await client.send(framed(b"echo:1") + many(b"echo:2") + framed(b"echo:3") + many(b"echo:4"))
        assert [await client.answer() for _ in range(4)] == [b"1", b"2", b"3", b"4"]
        assert node.seen == [b"echo:1", b"echo:2", b"echo:3", b"echo:4"]

    node, entry = run(script)
    assert entry.decoded_beside == [b"echo:2", b"echo:4"]
    assert entry.errors == {7: 4}
    assert entry.elements == 2 * (ELEMENTS_AT_ONCE + 1)
    assert node.services.held.bytes_held == 0


def test_others_are_served_while_a_long_request_is_decoded_and_its_answer_encoded() -> None:
    """While a long request is decoded, a later small request of another connection is answered."""

    async def script(world: World, node: Node, connect: Connect) -> None:
        greedy, modest = await connect(), await connect()
        await greedy.send(many(b"echo:much"))
        await modest.send(framed(b"echo:little"))
        assert await modest.answer() == b"little"
        assert node.seen == [b"echo:little"]
        assert await greedy.answer() == b"much"

    run(script)


def test_a_delayed_answer_to_a_long_request_is_encoded_beside_the_loop() -> None:
    """When a delayed response to a long request is complete, it is encoded before the connection's next request is
    dispatched."""

    async def script(world: World, node: Node, connect: Connect) -> None:
        client = await connect()
        await client.send(many(b"wait:1"))
        await world.sleep(1)
        node.waiting[b"1"].complete(b"one")
        await client.send(framed(b"echo:2"))
        assert node.entry.encoded == []  # type: ignore[attr-defined]  # a LongEntry
        assert [await client.answer(), await client.answer()] == [b"one", b"2"]

    _, entry = run(script)
    assert entry.encoded == [b"one", b"2"]


def test_bytes_that_are_no_request_close_their_connection_alone() -> None:
    """If a worker finds that a request is malformed, the connection is closed, as if the loop had found it."""

    async def script(world: World, node: Node, connect: Connect) -> None:
        bad, good = await connect(), await connect()
        await bad.send(many(b"bad"))
        assert await bad.is_closed()
        await good.send(framed(b"echo:1"))
        assert await good.answer() == b"1"

    node, _ = run(script)
    assert node.log.events == ["connection.protocol_error"]


def test_an_answer_that_cannot_be_encoded_closes_its_connection_alone() -> None:
    """A bug while a long response is encoded is logged and closes only its own connection."""

    async def script(world: World, node: Node, connect: Connect) -> None:
        bad, good = await connect(), await connect()
        await bad.send(many(b"echo:worse"))
        assert await bad.is_closed()
        await good.send(many(b"echo:1"))
        assert await good.answer() == b"1"

    node, _ = run(script)
    assert node.log.events == ["connection.bug"]


@pytest.mark.parametrize("seconds", [0.01, 0.04, 0.06, 0.09])
def test_a_client_that_leaves_meanwhile_leaves_nothing_behind(seconds: float) -> None:
    """If a client leaves while its request is decoded, handled or encoded, all memory and files are released."""

    async def script(world: World, node: Node, connect: Connect) -> None:
        gone, next_one = await connect(), await connect()
        node.file.append(bytes(1000))
        await gone.send(many(b"file:1000"))
        await world.sleep(seconds)
        for connection in list(node.server.connections)[:1]:
            connection.close()
        await next_one.send(many(b"echo:1"))
        assert await next_one.answer() == b"1"
        assert await gone.is_closed()

    node, _ = run(script)
    assert node.services.held.bytes_held == 0
    node.file.close()
    with pytest.raises(FileClosed):
        node.file.pread(1, 0)
