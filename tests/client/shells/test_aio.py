"""The async client over the ports, in the simulator: split and late segments, lost connections, a dying broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from odradek.client.admin import NewTopic, create_topics
from odradek.client.core.client_config import ClientConfig
from odradek.client.errors import BrokerUnavailable, ClientClosed, RequestTimedOut
from odradek.client.shells.aio import AsyncClient
from odradek.env.ports import Conn, ConnectionLost, Env
from odradek.wire.api import ApiKey
from odradek.wire.messages.describe_cluster import DescribeClusterRequest
from sim.load.fetching import FetchConfig, Fetcher
from sim.load.producing import ProduceConfig, Producing, RecordToSend
from sim.machine.weather import Weather
from sim.machine.world import World
from tests.client.fake_broker import SILENCE, BrokerEnd, FakeBroker

PORT = 9092
SEEDS = range(8)


def serve(broker: FakeBroker) -> Callable[[Env], Any]:
    """Return a node's main function, which serves the fake broker over the ports.

    The broker's records survive the node's death.
    """

    async def main(env: Env) -> None:
        async with trio.open_nursery() as nursery:
            listener = env.network.listen("", PORT)
            while True:
                nursery.start_soon(serve_one, await listener.accept())

    async def serve_one(conn: Conn) -> None:
        end = BrokerEnd(broker)
        buffer = memoryview(bytearray(1 << 14))
        try:
            while True:
                await conn.readable()
                count = conn.recv_into(buffer)
                if count is None:
                    continue
                answer = end.receive(bytes(buffer[:count])) if count else None
                if answer is None:
                    return
                rest = memoryview(answer)
                while rest:
                    taken = conn.send([rest])
                    rest = rest[taken:]
                    if not taken:
                        await conn.writable()
        except ConnectionLost:
            return
        finally:
            conn.close()

    return main


def in_a_world(seed: int, body: Callable[[World, AsyncClient, FakeBroker], Any], **config: Any) -> World:
    """Simulate two machines. `body` runs with a client on one, and the fake broker runs on the other."""
    world = World(seed)
    broker = FakeBroker("broker", PORT)

    async def main() -> None:
        world.start("broker", serve(broker))
        async with trio.open_nursery() as nursery:
            settings = ClientConfig(fail_fast=False, **config)
            client = AsyncClient(world.node_env("client"), nursery, [("broker", PORT)], settings)
            await body(world, client, broker)
            client.close()
            nursery.cancel_scope.cancel()

    world.run(main)
    return world


def records(count: int) -> list[RecordToSend]:
    return [RecordToSend("t", b"%d" % number, partition=number % 3) for number in range(count)]


async def write_and_read(world: World, client: AsyncClient, broker: FakeBroker) -> None:
    """Create a topic, produce records, read them back, and compare."""
    await client.run(create_topics(client.core, [NewTopic("t", 3)], timeout=60))
    producing = Producing(client.core, ProduceConfig(batch_bytes_max=500))
    deliveries = await client.run(producing.produce(records(600), timeout=120))
    assert all(delivery.error is None for delivery in deliveries)
    fetcher = Fetcher(client.core, FetchConfig(partition_max_bytes=3000, unavailable_timeout=300))
    for index in range(3):
        fetcher.assign("t", index, 0)
    found: list[list[bytes | None]] = [[], [], []]
    while sum(map(len, found)) < 600:
        for fetched in await client.run(fetcher.poll(timeout=5)):
            found[fetched.partition] += [record.value for record in fetched.records()]
    assert found == [[b"%d" % n for n in range(start, 600, 3)] for start in range(3)]


@pytest.mark.parametrize("seed", SEEDS)
def test_records_survive_any_weather(seed: int) -> None:
    """The network sends and receives a few bytes at a time, wakes tasks for nothing, and delays segments.

    All records survive.
    """
    in_a_world(seed, write_and_read)


@pytest.mark.parametrize("seed", SEEDS)
def test_records_survive_a_broker_that_dies_again_and_again(seed: int) -> None:
    """The broker dies several times, and every connection is lost.

    An idempotent producer writes each record once and in order.
    """

    async def body(world: World, client: AsyncClient, broker: FakeBroker) -> None:
        async def kill() -> None:
            for _ in range(6):
                enough = len(broker.requests) + world.random.randint(3, 12)
                while len(broker.requests) < enough:
                    await world.sleep(world.random.uniform(0.0001, 0.001))
                world.crash("broker")
                await world.sleep(world.random.uniform(0.01, 1.0))
                world.start("broker", serve(broker))

        broker.add_topic("t", 3)
        killed = world.spawn(kill)
        producing = Producing(client.core, ProduceConfig(batch_bytes_max=200))
        count = 0
        while not killed.is_set():
            batch = [RecordToSend("t", b"%d" % n, partition=n % 3) for n in range(count, count + 60)]
            count += len(batch)
            deliveries = await client.run(producing.produce(batch, timeout=300))
            assert all(delivery.error is None for delivery in deliveries)
        assert broker.values("t") == [[b"%d" % n for n in range(first, count, 3)] for first in range(3)]
        assert broker.connections > 3

    in_a_world(seed, body, request_timeout=5.0)


def test_one_seed_gives_one_history() -> None:
    """Two runs with one seed are equal, since the client takes time and randomness only from its ports."""
    digests = {in_a_world(5, write_and_read).digest() for _ in range(2)}
    assert len(digests) == 1


def test_operations_run_side_by_side() -> None:
    """Ten tasks share one connection, and each gets its own answer."""

    async def body(world: World, client: AsyncClient, broker: FakeBroker) -> None:
        answers = []

        async def ask() -> None:
            answers.append((await client.request(DescribeClusterRequest(), node=1)).cluster_id)

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(ask)
        assert answers == ["fake-cluster"] * 10
        assert client.core.statistics()["connections"] == 1

    in_a_world(3, body)


def test_deadlines_are_kept_on_the_nodes_own_clock() -> None:
    """A broker never answers. The call fails at its deadline by the node's clock, and the client remains usable."""

    async def body(world: World, client: AsyncClient, broker: FakeBroker) -> None:
        await client.metadata([])
        broker.trouble[ApiKey.DESCRIBE_CLUSTER].append(SILENCE)
        started = world.now
        with pytest.raises(RequestTimedOut):
            await client.request(DescribeClusterRequest(), timeout_ms=2000)
        assert world.now - started == pytest.approx(2.0)
        assert (await client.request(DescribeClusterRequest())).controller_id == 1

    in_a_world(1, body)


def test_a_broker_that_cannot_be_reached() -> None:
    """The network is cut.

    A call retries until its deadline, then raises the reason. When the network is healed, calls succeed again.
    """

    async def body(world: World, client: AsyncClient, broker: FakeBroker) -> None:
        world.partition("client", "broker")
        with pytest.raises((BrokerUnavailable, RequestTimedOut)):
            await client.request(DescribeClusterRequest(), timeout_ms=3000)
        world.heal("client", "broker")
        assert (await client.request(DescribeClusterRequest(), timeout_ms=60_000)).controller_id == 1

    in_a_world(2, body, connect_timeout=1.0)


def test_close_ends_what_is_under_way() -> None:
    """`close` ends waiting calls with ClientClosed, and all tasks of the client end."""
    world = World(1, Weather())
    broker = FakeBroker("broker", PORT)
    broker.trouble[ApiKey.DESCRIBE_CLUSTER].append(SILENCE)
    seen: list[BaseException] = []

    async def main() -> None:
        world.start("broker", serve(broker))
        async with trio.open_nursery() as nursery:
            client = AsyncClient(world.node_env("client"), nursery, [("broker", PORT)])

            async def ask() -> None:
                try:
                    await client.request(DescribeClusterRequest())
                except ClientClosed as error:
                    seen.append(error)

            nursery.start_soon(ask)
            while not broker.requests:
                await world.sleep(0.01)
            client.close()

    world.run(main, virtual_seconds_max=100)
    assert len(seen) == 1
