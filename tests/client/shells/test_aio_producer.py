"""The async producer over the ports.

In the simulator a broker dies, or a node loses power; a trio program uses a real socket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio

import odradek.trio
from odradek.client.errors import BufferFull, ClientClosed
from odradek.client.shells.aio_producer import AsyncProducer, SentRecord
from odradek.wire.api import ApiKey
from sim.machine.world import World
from tests.client.fake_broker import SILENCE, FakeBroker, LoopbackBroker
from tests.client.shells.test_aio import PORT, serve
from tests.schedule import seeds
from tests.sim.runs.test_node_in_sim import CALM, NODE, connect, format_node, node_config, read, start_node

SEEDS = seeds(4, quick=1)


def in_a_world(seed: int, body: Callable[[World, AsyncProducer, FakeBroker], Any], **keys: Any) -> World:
    """Simulate two machines.

    `body` runs with a producer on one, and the fake broker with topic `t` runs on the other.
    """
    world = World(seed)
    broker = FakeBroker("broker", PORT)
    broker.add_topic("t", 3)

    async def main() -> None:
        world.start("broker", serve(broker))
        async with trio.open_nursery() as nursery:
            env = world.node_env("client")
            producer = AsyncProducer(env, nursery, bootstrap_servers=f"broker:{PORT}", **keys)
            await body(world, producer, broker)
            await producer.close()
            nursery.cancel_scope.cancel()

    world.run(main)
    return world


async def write(world: World, producer: AsyncProducer, broker: FakeBroker) -> None:
    """Write records one after another, and some concurrently.

    Check that each is at the place that the producer reported.
    """
    sent: list[SentRecord] = []
    for number in range(400):
        sent.append(await producer.send("t", b"%d" % number, partition=number % 3))
        if world.random.random() < 0.02:
            await world.sleep(world.random.uniform(0, 0.02))
    await producer.flush()
    assert broker.values("t") == [[b"%d" % n for n in range(first, 400, 3)] for first in range(3)]
    for number, record in enumerate(sent):
        metadata = await record.result()
        assert (metadata.partition, metadata.offset) == (number % 3, number // 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_records_survive_any_weather(seed: int) -> None:
    """The network sends and receives a few bytes at a time, and delays segments. All records survive."""
    in_a_world(seed, write, batch_size=200)


def test_one_seed_gives_one_history() -> None:
    """Two runs with one seed are equal, since the producer takes time and randomness only from its ports."""
    assert len({in_a_world(5, write, batch_size=200).digest() for _ in range(2)}) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_records_survive_a_broker_that_dies_again_and_again(seed: int) -> None:
    """The broker dies several times with five requests in flight. Each record is written once and in order."""

    async def body(world: World, producer: AsyncProducer, broker: FakeBroker) -> None:
        async def kill() -> None:
            for _ in range(6):
                enough = len(broker.requests) + world.random.randint(3, 12)
                while len(broker.requests) < enough:
                    await world.sleep(world.random.uniform(0.0001, 0.001))
                world.crash("broker")
                await world.sleep(world.random.uniform(0.01, 1.0))
                world.start("broker", serve(broker))

        killed = world.spawn(kill)
        count = 0
        while not killed.is_set():
            await producer.send("t", b"%d" % count, partition=count % 3)
            count += 1
            await world.sleep(0.001)
        await producer.flush()
        assert broker.values("t") == [[b"%d" % n for n in range(first, count, 3)] for first in range(3)]
        assert producer.metrics()["batches repeated"] > 0
        assert "batches failed" not in producer.metrics()

    in_a_world(seed, body, batch_size=100, linger_ms=0, request_timeout_ms=5_000, delivery_timeout_ms=600_000)


def test_memory_holds_the_application_back() -> None:
    """`buffer.memory` is full for `max.block.ms`, and `send` raises BufferFull.

    When there is room again, it succeeds.
    """

    async def body(world: World, producer: AsyncProducer, broker: FakeBroker) -> None:
        await producer.partitions_for("t")
        broker.trouble[ApiKey.PRODUCE].append(SILENCE)
        for _ in range(4):
            await producer.send("t", b"x" * 900)
        with pytest.raises(BufferFull):
            await producer.send("t", b"x" * 900)
        await producer.flush()
        assert producer.metrics()["buffer bytes used"] == 0
        await (await producer.send("t", b"y")).result()

    in_a_world(1, body, buffer_memory=4800, batch_size=1000, max_block_ms=5_000)


@pytest.mark.parametrize("seed", seeds(3, quick=1))
def test_a_node_that_loses_power_keeps_what_the_producer_was_told(seed: int) -> None:
    """The power of a node with `flush.messages=1` fails at any disk operation.

    Acknowledged records survive, once and in order.
    """
    world = World(seed, CALM)

    async def main() -> None:
        format_node(world, node_config())
        world.crash(NODE, "synced")
        running = start_node(world)
        client = await connect(world)
        sent: list[SentRecord] = []
        async with trio.open_nursery() as nursery:
            producer = AsyncProducer(
                world.node_env("producer"),
                nursery,
                bootstrap_servers=f"{NODE}:{PORT}",
                batch_size=150,
                linger_ms=0,
                request_timeout_ms=3_000,
                delivery_timeout_ms=600_000,
            )
            for _ in range(5):
                disk = world.machine(NODE).disk
                disk.crash_at(disk.operation_count + world.random.randint(5, 120))
                while not running.ended.is_set():
                    for _ in range(world.random.randint(1, 30)):
                        sent.append(await producer.send("t", b"%d" % len(sent)))
                    await world.sleep(world.random.uniform(0, 0.01))
                disk.crash("random")
                running = start_node(world)
            await producer.flush()
            offsets = [(await record.result()).offset for record in sent]
            await producer.close()
            nursery.cancel_scope.cancel()
        assert [offset for offset in offsets if offset >= 0] == [
            number for number, offset in enumerate(offsets) if offset >= 0
        ]
        assert await read(client, len(sent)) == [b"%d" % number for number in range(len(sent))]
        assert len(sent) > 100

    world.run(main)


@pytest.fixture
def broker() -> Iterator[LoopbackBroker]:
    """A broker that listens on a real socket, with topic `t`."""
    with LoopbackBroker() as opened:
        opened.broker.add_topic("t", 1)
        yield opened


def test_a_trio_program(broker: LoopbackBroker) -> None:
    """`odradek.trio.open_producer` has sent all records when its block ends."""

    async def main() -> list[int]:
        async with odradek.trio.open_producer(bootstrap_servers=broker.bootstrap) as producer:
            records = [await producer.send("t", b"%d" % number) for number in range(500)]
            first = await records[0].result()
        return [first.offset, *[(await record.result()).offset for record in records[1:]]]

    assert trio.run(main) == list(range(500))
    assert broker.broker.values("t") == [[b"%d" % number for number in range(500)]]


def test_an_error_in_the_block_gives_up_what_is_there(broker: LoopbackBroker) -> None:
    """A block raises. Its unacknowledged records are given up at once, even if the broker is silent."""
    broker.broker.trouble[ApiKey.PRODUCE].append(SILENCE)
    records: list[SentRecord] = []

    async def main() -> None:
        async with odradek.trio.open_producer(bootstrap_servers=broker.bootstrap) as producer:
            records.append(await producer.send("t", b"x"))
            raise KeyError("the program failed")

    with pytest.raises(ExceptionGroup) as caught:
        trio.run(main)
    assert isinstance(caught.value.exceptions[0], KeyError)
    with pytest.raises(ClientClosed):
        trio.run(records[0].result)


def test_memory_that_is_free_at_once_is_not_waited_for() -> None:
    """`buffer.memory` is nearly full.

    The compression of a batch frees memory, and a record that waits for room gets it at once.
    """

    async def body(world: World, producer: AsyncProducer, broker: FakeBroker) -> None:
        values = [b"%d" % number + bytes(700) for number in range(60)]
        for value in values:
            await producer.send("t", value, partition=0)
        await producer.flush()
        assert broker.values("t")[0] == values

    in_a_world(1, body, compression_type="gzip", buffer_memory=8000, batch_size=16_384, linger_ms=1000)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_cut_and_refused_leaves_the_others_in_order(seed: int) -> None:
    """Batches in flight are refused with MESSAGE_TOO_LARGE and halved.

    Their parts are written in order, under new sequence numbers.
    """

    async def body(world: World, producer: AsyncProducer, broker: FakeBroker) -> None:
        broker.max_batch_bytes = 1000
        small = []
        for number in range(60):
            size = world.random.choice((10, 10, 1200))
            value = b"%d:" % number + bytes(size)
            await producer.send("t", value, partition=0)
            small += [value] if size == 10 else []
        await producer.flush()
        assert broker.values("t")[0] == small

    in_a_world(seed, body, batch_size=16_384, linger_ms=50, delivery_timeout_ms=600_000)
