"""Topics created by Metadata requests: a few for each request, and only one CreateTopics for the same names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from odradek.data_plane.handlers.metadata import CREATED_PER_REQUEST_MAX
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from sim.machine.world import World
from testkit.lone_node import play, request
from testkit.raw_requests import frame
from testkit.virtual import Client

NAMES = [f"t{number}" for number in range(3 * CREATED_PER_REQUEST_MAX)]


def naming(names: list[str]) -> MetadataRequest:
    return MetadataRequest([MetadataRequestTopic(name=name) for name in names], True, False, False)


async def made(client: Client) -> int:
    return len((await request(client, MetadataRequest(None, False, False, False), 9)).topics)


async def settled(world: World, client: Client) -> int:
    """Wait until the number of topics is stable; return it."""
    count, before = await made(client), -1
    while count != before:
        await world.sleep(5.0)
        count, before = await made(client), count
    return count


def test_one_request_creates_a_bounded_number_of_topics() -> None:
    """A Metadata request creates a bounded number of topics. The others are created when the client repeats the
    request."""

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        await request(client, naming(NAMES), 9)
        assert await settled(world, client) == CREATED_PER_REQUEST_MAX
        asked = 1
        while await made(client) < len(NAMES):
            await request(client, naming(NAMES), 9)
            await settled(world, client)
            asked += 1
        assert asked == 3

    play(script)


def test_large_topics_are_created_a_few_at_a_time() -> None:
    """Large topics are created a few at a time, because the controller refuses a request that needs over 10,000
    records."""

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        await request(client, naming(NAMES[:30]), 9)
        assert 0 < await settled(world, client) < 30

    play(script, num_partitions="500")


def test_many_clients_that_want_the_same_topics_ask_the_controller_once() -> None:
    """If several clients name the same missing topics, the broker sends one CreateTopics for all of them."""
    requests: list[list[str]] = []

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        node: Any = nodes[0]
        forward = node.broker.controller.forward

        async def counted(sender: Any, message: Any, version: int, deadline: float) -> Any:
            requests.append([topic.name for topic in message.topics])
            return await forward(sender, message, version, deadline)

        node.broker.controller.forward = counted
        clients = [await connect() for _ in range(5)]
        for client in clients:
            await client.send(bytes(frame(naming(NAMES[:50]), 9)))
        for client in clients:
            await client.answer()
        assert await settled(world, clients[0]) == 50
        assert requests == [NAMES[:50]]

    nodes: list[Any] = []
    play(script, made=nodes.append)
