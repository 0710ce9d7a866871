"""Appends of one connection keep the order of its requests, even if some are parked, suspended, in a worker or cut off.

Random mixes of requests go over several connections to one node; its logs show the order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import attrs
import pytest

from odradek.env.ports import ConnectionLost
from odradek.node.node import Node
from odradek.serving.contract import Context
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.batches.compression import CompressionType
from odradek.wire.batches.records import records
from odradek.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.wire.record_batch import RecordBatchBuilder
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.lone_node import play, request
from testkit.raw_requests import frame
from testkit.virtual import Client

TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "gzip": {"compression.type": "gzip"},
    "flushed": {"flush.messages": "1"},
    "both": {"compression.type": "lz4", "flush.messages": "2"},
}
CONNECTIONS = 5
REQUESTS = 40
SLOW_WORKERS = Weather(
    latency_seconds=(0.0001, 0.01),
    split_probability=0.2,
    short_recv_probability=0.2,
    spurious_wake_probability=0.05,
    late_probability=0.3,
    late_seconds=0.5,
    worker_seconds=(0.0005, 0.05),
    worker_spike_probability=0.05,
)


@attrs.define
class Sender:
    """A connection that pipelines requests of all kinds, and that may be cut in the middle of a request."""

    number: int
    random: Random
    sent: dict[str, list[int]] = attrs.field(factory=lambda: {topic: [] for topic in TOPICS})
    """By topic, the serial numbers sent, in order."""
    answers_due: int = 0
    is_cut: bool = False

    def produce(self, serial: int) -> bytes:
        topics = self.random.sample(sorted(TOPICS), self.random.choice((1, 1, 2)))
        data = []
        for topic in topics:
            builder = RecordBatchBuilder(
                compression_type=self.random.choice((CompressionType.NONE, CompressionType.SNAPPY))
            )
            size = self.random.choice((10, 200, 3_000, 40_000))
            if self.random.random() < 0.1:
                # Larger than what the event loop decompresses itself.
                builder, size = RecordBatchBuilder(compression_type=CompressionType.ZSTD), 2_500_000
            builder.append(1, b"%d" % self.number, b"%d:" % serial + b"x" * size)
            data.append(TopicProduceData(topic, bytes(16), [PartitionProduceData(0, builder.build())]))
            self.sent[topic].append(serial)
        acks = self.random.choice((-1, 0, 1))
        self.answers_due += acks != 0
        return bytes(frame(ProduceRequest(None, acks, 5000, data), 9))

    def other(self) -> bytes:
        """Make a fetch that is parked, or a request that suspends the connection."""
        topic = FetchTopic("plain", bytes(16), [FetchPartition(0, -1, 0, -1, -1, 1 << 20)])
        others: list[tuple[Any, int]] = [
            (
                FetchRequest(
                    max_wait_ms=200, min_bytes=1 << 30, max_bytes=1, session_epoch=-1, topics=[topic]
                ),
                12,
            ),
            (CreateTopicsRequest([CreatableTopic("plain", 1, 1)], 1000, False), 5),
            (InitProducerIdRequest(None, 0), 4),
        ]
        self.answers_due += 1
        return bytes(frame(*self.random.choice(others)))

    async def take(self, client: Client) -> None:
        """Receive all responses, or those that arrive before the connection is cut."""
        try:
            for _ in range(self.answers_due):
                await client.answer()
        except ConnectionLost:
            assert self.is_cut

    async def run(self, world: World, client: Client) -> None:
        """Send all requests, in pieces that do not match the frames."""
        stream = bytearray()
        for serial in range(REQUESTS):
            if self.random.random() < 0.3:
                stream += self.other()
            stream += self.produce(serial)
        end = len(stream)
        if self.number % 2:
            self.is_cut, end = True, self.random.randrange(end)
        taken = world.spawn(self.take, client)
        position = 0
        while position < end:
            size = self.random.choice((7, 500, 20_000, 200_000))
            await client.send(bytes(stream[position : min(end, position + size)]))
            position += size
            if self.random.random() < 0.3:
                await world.sleep(self.random.choice((0.0, 0.001, 0.1)))
        if self.is_cut:
            client.conn.close()
        await taken.wait()


async def read_all(client: Client, topic: str) -> list[tuple[int, int]]:
    """Return (connection, serial) of each record, in the log's order."""
    found: list[tuple[int, int]] = []
    offset = 0
    while True:
        asked = FetchTopic(topic, bytes(16), [FetchPartition(0, -1, offset, -1, -1, 1 << 20)])
        message = FetchRequest(
            max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, session_epoch=-1, topics=[asked]
        )
        data = bytes((await request(client, message, 12)).responses[0].partitions[0].records)
        if not data:
            return found
        for position, header in iter_batches(data):
            for record in records(data, position, decompressed_bytes_max=1 << 22):
                assert record.key is not None
                assert record.value is not None
                found.append((int(record.key), int(record.value.split(b":", 1)[0])))
            offset = header.last_offset + 1


@pytest.mark.parametrize("seed", range(12))
def test_one_connections_appends_are_in_the_order_of_its_requests(seed: int) -> None:
    """Each log has the records of a connection in the order of its requests. If the connection was cut, only its last
    records may be missing."""
    random = Random(seed)
    nodes: list[Node] = []
    told: dict[tuple[Context, str], list[int]] = {}

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        broker = nodes[0].broker
        assert broker is not None
        first = await connect()
        topics = [
            CreatableTopic(name, 1, 1, [], [CreatableTopicConfig(*item) for item in settings.items()])
            for name, settings in TOPICS.items()
        ]
        created = await request(first, CreateTopicsRequest(topics, 10_000, False), 5)
        assert not any(topic.error_code for topic in created.topics)

        def note(connection: Context, number: int, log: Any, result: Any) -> None:
            told.setdefault((connection, log.topic), []).append(number)

        broker.on_produced = note
        senders = [Sender(number, Random(f"{seed}/{number}")) for number in range(CONNECTIONS)]
        clients = [await connect() for _ in senders]

        for done in [
            world.spawn(sender.run, world, client) for sender, client in zip(senders, clients, strict=True)
        ]:
            await done.wait()
        await world.sleep(30.0)
        reader = await connect()
        for topic in TOPICS:
            stored = await read_all(reader, topic)
            for sender in senders:
                got = [serial for number, serial in stored if number == sender.number]
                assert got == sender.sent[topic][: len(got)]
                assert sender.is_cut or len(got) == len(sender.sent[topic])
        assert told
        assert all(numbers == sorted(set(numbers)) for numbers in told.values())

    play(
        script,
        attrs.evolve(SLOW_WORKERS, short_send_probability=random.choice((0.0, 0.2))),
        made=nodes.append,
    )
