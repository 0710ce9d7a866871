"""The async consumer over the ports.

In the simulator it is in a group on a node that dies; a trio program uses a real node.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

import odradek.trio
from odradek import UndecodableRecord
from odradek.client.admin import NewTopic, create_topics
from odradek.client.consumer.consumer_types import (
    ConsumerRecord,
    OffsetAndMetadata,
    RebalanceListener,
    Wakeup,
)
from odradek.client.core.client_config import ClientConfig
from odradek.client.shells.aio import AsyncClient
from odradek.client.shells.aio_consumer import AsyncConsumer
from odradek.client.shells.aio_producer import AsyncProducer
from odradek.env.ports import Env
from odradek.node.run_node import run_node
from odradek.wire.topic_partition import TopicPartition
from sim.machine.disk import Keep
from sim.machine.members import TraceLog
from sim.machine.world import World
from sim.scenarios.lone_node_scenario import NODE, PORT, format_node, node_config
from tests.node_process import RunningNode

PARTITIONS = 4
RECORDS = 300
PATIENCE_SECONDS = 60.0
SETTINGS = {
    "offsets_topic_replication_factor": "1",
    "offsets_topic_num_partitions": "2",
    "group_initial_rebalance_delay_ms": "500",
}


class Reader:
    """A group member that keeps the records that it reads, and checks that each partition is in order."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        self.consumer = consumer
        self.read: list[ConsumerRecord] = []
        self.assigned = 0
        self._next: dict[TopicPartition, int] = {}

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.assigned += 1
        for key in partitions:
            self._next.pop(key, None)

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        for key in partitions:
            self._next.pop(key, None)

    async def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        await self.on_partitions_revoked(partitions)

    async def run(self, done: Callable[[], bool]) -> None:
        self.consumer.subscribe(["t"], listener=self)
        while not done():
            for record in await self.consumer.poll(1.0):
                key = TopicPartition(record.topic, record.partition)
                expected = self._next.get(key, record.offset)
                assert record.offset == expected, (
                    f"{key} continues at offset {record.offset} instead of {expected}"
                )
                self._next[key] = record.offset + 1
                self.read.append(record)


def run_group(seed: int, keep: Keep, strategy: str) -> tuple[list[Reader], str]:
    """Run two members that read while a producer writes and the node dies three times.

    Return when all records are read.
    """
    world = World(seed)
    config = node_config(**SETTINGS)
    readers: list[Reader] = []

    async def serve(env: Env) -> None:
        await run_node(config, env, log=TraceLog(world, NODE), poison=True)

    def all_read() -> bool:
        return len({record.value for reader in readers for record in reader.read}) == RECORDS

    async def main() -> None:
        format_node(world, config)
        world.crash(NODE, "synced")
        world.start(NODE, serve)
        admin_env = world.node_env("admin")
        admin = AsyncClient(admin_env, world.tasks, [(NODE, PORT)], ClientConfig(fail_fast=False))
        topic = NewTopic("t", PARTITIONS, 1, {"flush.messages": "1"})
        (created,) = await admin.run(create_topics(admin.core, [topic], timeout=30.0))
        assert created.error is None
        keys = {"bootstrap_servers": f"{NODE}:{PORT}"}
        for number in range(2):
            consumer = AsyncConsumer(
                world.node_env(f"reader-{number}"),
                world.tasks,
                group_id="g",
                auto_offset_reset="earliest",
                partition_assignment_strategy=[strategy],
                session_timeout_ms=10_000,
                heartbeat_interval_ms=1_000,
                auto_commit_interval_ms=500,
                **keys,
            )
            readers.append(Reader(consumer))
        ended = [world.spawn(reader.run, all_read) for reader in readers]
        while not all(reader.consumer.assignment() for reader in readers):
            await world.sleep(0.1)
        producer = AsyncProducer(world.node_env("writer"), world.tasks, **keys)
        for number in range(RECORDS):
            await producer.send("t", b"%d" % number, partition=number % PARTITIONS)
            if number % 100 == 50:
                await producer.flush()
                world.crash(NODE, keep)
                await world.sleep(world.random.uniform(0.0, 2.0))
                world.start(NODE, serve)
            await world.sleep(world.random.uniform(0.0, 0.05))
        await producer.close()
        for event in ended:
            await event.wait()
        for reader in readers:
            await reader.consumer.close()
        admin.close()

    world.run(main)
    return readers, world.digest()


@pytest.mark.parametrize(
    ("seed", "keep", "strategy"),
    [
        (0, "synced", "range"),
        pytest.param(1, "all", "range", marks=pytest.mark.long),
        pytest.param(2, "synced", "cooperative-sticky", marks=pytest.mark.long),
        (3, "all", "cooperative-sticky"),
    ],
)
def test_a_group_misses_nothing_while_its_node_dies(seed: int, keep: Keep, strategy: str) -> None:
    """The node dies three times. Every acknowledged record is read at least once, and each partition in order."""
    readers, _ = run_group(seed, keep, strategy)
    assert all(reader.assigned for reader in readers)
    assert {int(r.value) for reader in readers for r in reader.read} == set(range(RECORDS))


def test_one_seed_gives_one_history() -> None:
    """Two runs with one seed are equal, since the consumer takes time and randomness only from its ports."""
    assert len({run_group(5, "all", "range")[1] for _ in range(2)}) == 1


def test_a_trio_program_reads_in_a_group(node: RunningNode, fresh_topic: Callable[[str], str]) -> None:
    """`odradek.trio.open_consumer` subscribes, iterates, commits and seeks.

    It leaves the group at the end of the block.
    """
    topic = fresh_topic("trio")

    async def main() -> None:
        async with odradek.trio.open_producer(bootstrap_servers=node.bootstrap) as producer:
            for number in range(100):
                await producer.send(topic, b"%d" % number)
        keys = {
            "bootstrap.servers": node.bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "fetch.max.wait.ms": 50,
        }
        async with odradek.trio.open_consumer(keys) as consumer:
            consumer.subscribe(topic)
            values = []
            async for record in consumer:
                values.append(record.value)
                if len(values) == 100:
                    break
            assert values == [b"%d" % n for n in range(100)]
            await consumer.commit({(topic, 0): 40})
            key = TopicPartition(topic, 0)
            assert await consumer.end_offsets([key]) == {key: 100}
            assert await consumer.beginning_offsets([key]) == {key: 0}
            consumer.seek(key, 98)
            assert await consumer.position(key) == 98
            assert [record.offset for record in await consumer.poll(10)] == [98, 99]
            assert consumer.lag(key) == 0
            consumer.pause(key)
            assert (consumer.paused(), consumer.subscription()) == ({key}, {topic})
            consumer.wakeup()
            with pytest.raises(Wakeup):
                await consumer.poll(10)
            with trio.move_on_after(0.05):
                await consumer.poll(1000)
            consumer.resume(key)
            consumer.seek(key, 97)
            batches = await consumer.poll_batches(10)
            assert batches[0].start_offset == 97
            await consumer.commit({key: 41})
            assert (await consumer.committed([key]))[key] == (41, -1, "")
            await consumer.unsubscribe()
            assert consumer.assignment() == set()

    trio.run(main)


def test_a_trio_program_asks_for_a_rebalance_and_commits_in_passing(
    node: RunningNode, fresh_topic: Callable[[str], str]
) -> None:
    """After `enforce_rebalance` all partitions are assigned anew. `commit_soon` reports its outcome in a later poll."""
    topic = fresh_topic("trio-rebalance")
    key = TopicPartition(topic, 0)
    told: list[str] = []
    outcomes: list[tuple[dict[TopicPartition, OffsetAndMetadata], Exception | None]] = []

    class Listener(RebalanceListener):
        """A rebalance listener that remembers its calls."""

        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            told.append("assigned")

        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            told.append("revoked")

    async def main() -> None:
        async with odradek.trio.open_producer(bootstrap_servers=node.bootstrap) as producer:
            await producer.send(topic, b"v")
        keys = {"bootstrap_servers": node.bootstrap, "group_id": topic, "auto_offset_reset": "earliest"}
        with trio.fail_after(PATIENCE_SECONDS):
            async with odradek.trio.open_consumer(**keys) as consumer:
                consumer.subscribe(topic, listener=Listener())
                while told != ["assigned"]:
                    await consumer.poll(0.1)
                consumer.enforce_rebalance()
                while told != ["assigned", "revoked", "assigned"]:
                    await consumer.poll(0.1)
                consumer.commit_soon({key: 1}, lambda offsets, error: outcomes.append((offsets, error)))
                while not outcomes:
                    await consumer.poll(0.1)
                assert outcomes == [({key: OffsetAndMetadata(1)}, None)]
                assert (await consumer.committed([key]))[key] == OffsetAndMetadata(1)

    trio.run(main)


def test_a_lasting_error_leaves_other_tasks_their_turns(
    node: RunningNode, fresh_topic: Callable[[str], str]
) -> None:
    """A program catches the error of a record that cannot be decoded, and polls on. Another task runs meanwhile."""
    topic = fresh_topic("trio-poison")
    turns = 0

    def unreadable(_: bytes) -> object:
        raise ValueError("not of this kind")

    async def main() -> None:
        async with odradek.trio.open_producer(bootstrap_servers=node.bootstrap) as producer:
            await producer.send(topic, b"v")
        async with odradek.trio.open_consumer(
            bootstrap_servers=node.bootstrap, value_deserializer=unreadable, auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([(topic, 0)])
            while True:
                try:
                    await consumer.poll(0.1)
                except UndecodableRecord:
                    break
            async with trio.open_nursery() as nursery:
                nursery.start_soon(count_turns)
                for _ in range(100):
                    with pytest.raises(UndecodableRecord):
                        await consumer.poll(0.1)
                nursery.cancel_scope.cancel()

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    trio.run(main)
    assert turns >= 50, f"another task had {turns} turns during 100 polls"
