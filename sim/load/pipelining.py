"""Workload: clients that send Produce requests over plain connections without waiting for answers. The log must keep
the order of each connection. PORTED.

Each connection sends Produce requests for one partition without waiting for answers. The connection uses every value
of `acks`, every codec, and sizes that brokers handle in different ways. It may end at any byte. Every request is sent
once, without a producer id by which the broker could restore the order. A record's value begins with the name of its
connection. So `sim.history` compares the log with the order of each connection, and finds duplicates.
"""

from __future__ import annotations

from random import Random

from odradek.client.errors import ClientError
from odradek.env.ports import Conn, ConnectionLost, Env
from odradek.wire.batches.records import RecordBatchBuilder
from odradek.wire.errors import ErrorCode, KafkaError, RemoteProtocolError
from odradek.wire.framing.connection import NEED_DATA, ClientConnection, ConnectionClosed, ResponseReceived
from odradek.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.wire.structure import Message
from odradek.wire.topic_partition import TopicPartition
from sim.history import Told
from sim.load.workload import Workload

TOPIC = "pipelined"
PARTITIONS = 2
PRODUCE_VERSION = 9
REQUESTS_MAX = 30
"""The largest number of requests on one connection. All requests that are sent before the first answer are in flight
together.
"""
ACKS_ALL = -1
ACKS = (ACKS_ALL, ACKS_ALL, 1, 0)
CODECS = (0, 0, 1, 2, 3, 4)
TOPIC_CODECS = ("producer", "gzip", "snappy", "lz4", "zstd", "uncompressed")
VALUE_BYTES = (0, 100, 3000)
"""Choices for the size of a value in bytes. With the largest size a broker compresses the batch outside its event
loop.
"""
CUT_PROBABILITY = 0.02
"""The probability that a connection ends within a request."""
WAIT_SECONDS_MAX = 10.0
RECEIVE_BYTES = 1 << 14

__all__ = ["PARTITIONS", "TOPIC", "Pipelining", "topic_configs"]


def topic_configs(random: Random) -> dict[str, str]:
    """Draw the topic's configuration. Often its codec differs from a request's codec. Sometimes `flush.messages`
    makes brokers sync often.
    """
    configs = {"compression.type": random.choice(TOPIC_CODECS)}
    if random.random() < 0.5:
        configs["flush.messages"] = random.choice(("1", "5"))
    return configs


class Pipelining:
    """One client, which opens one connection after another until the workload ends."""

    def __init__(self, load: Workload, name: str) -> None:
        self._load = load
        self._name = name
        self._random = Random(f"{load.world.seed}/{name}")
        self._client = load.client(name)
        self._connections = 0

    async def run(self) -> None:
        world, random = self._load.world, self._random
        while not self._load.is_over:
            key = TopicPartition(TOPIC, random.randrange(PARTITIONS))
            try:
                cluster = await self._client.metadata([TOPIC])
                leader = cluster.brokers.get(cluster.partition(*key).leader)
                if leader is not None:
                    await self._connection(key, leader.host, leader.port)
            except (KafkaError, ClientError, ConnectionLost, RemoteProtocolError) as error:
                world.trace.record(world.now, self._name, "pipeline", error)
            await world.sleep(random.uniform(0.0, 2.0))
        self._client.close()

    async def _connection(self, key: TopicPartition, host: str, port: int) -> None:
        """Send requests on one connection, some without a pause, and record the answers that have arrived."""
        env = self._load.world.node_env(self._name)
        conn = await env.network.connect(host, port)
        self._connections += 1
        line = _Line(self._load, env, f"{self._name}.{self._connections}", key, conn, self._random)
        try:
            for _ in range(self._random.randint(1, REQUESTS_MAX)):
                await line.ask()
                line.take_answers()
                if self._random.random() < 0.3:
                    await self._load.world.sleep(self._random.uniform(0.0, 0.05))
            if self._random.random() < 0.5:
                await line.wait_for_answers()
        finally:
            conn.close()


class _Line:
    """One connection, and its unanswered requests."""

    def __init__(
        self, load: Workload, env: Env, name: str, key: TopicPartition, conn: Conn, random: Random
    ) -> None:
        self._load = load
        self._env = env
        self._name = name
        self._key = key
        self._conn = conn
        self._random = random
        self._serial = 0
        self._core = ClientConnection(client_id=name)
        self._asked: dict[int, tuple[float, int, list[bytes]]] = {}
        """The virtual time, the `acks` and the values of each unanswered request, by its correlation id."""
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))

    async def ask(self) -> None:
        """Send one batch. Raises `ConnectionLost`."""
        load, random = self._load, self._random
        acks = random.choice(ACKS)
        now_ms = self._env.clock.wall_ms()
        builder = RecordBatchBuilder(compression_type=random.choice(CODECS))
        values = []
        for _ in range(random.choice((1, 1, 4))):
            value = b"%s:%d:" % (self._name.encode(), self._serial) + bytes(random.choice(VALUE_BYTES))
            self._serial += 1
            values.append(value)
            load.history.send(self._key, value, self._name, load.world.now)
            builder.append(now_ms, None, value)
        data = PartitionProduceData(self._key.partition, builder.build())
        timeout_ms = random.choice((50, 5000, 30_000))
        request = ProduceRequest(
            None, acks, timeout_ms, [TopicProduceData(self._key.topic, partition_data=[data])]
        )
        correlation_id = self._core.next_correlation_id
        frame = self._core.send(request, PRODUCE_VERSION, expect_response=acks != 0)
        if acks:
            self._asked[correlation_id] = (load.world.now, acks, values)
        cut = random.random() < CUT_PROBABILITY
        await self._send(memoryview(frame)[: random.randrange(len(frame)) if cut else len(frame)])
        if cut:
            raise ConnectionLost("cut by its client")

    async def _send(self, left: memoryview) -> None:
        clock = self._env.clock
        while left:
            taken = self._conn.send([left])
            left = left[taken:]
            if left:
                with clock.timeout_at(clock.monotonic() + WAIT_SECONDS_MAX) as waiting:
                    await self._conn.writable()
                if waiting.expired:
                    raise ConnectionLost("takes nothing")

    def take_answers(self) -> None:
        """Record the answers that have arrived. Raises `ConnectionLost`, and `RemoteProtocolError` for an answer out
        of order.
        """
        while (count := self._conn.recv_into(self._buffer)) is not None:
            self._core.receive_data(self._buffer[:count])
            while (event := self._core.next_event()) is not NEED_DATA:
                if isinstance(event, ConnectionClosed):
                    raise ConnectionLost("closed by the broker")
                assert isinstance(event, ResponseReceived)
                self._note(event.correlation_id, event.response)

    def _note(self, correlation_id: int, response: Message) -> None:
        assert isinstance(response, ProduceResponse)
        began, acks, values = self._asked.pop(correlation_id)
        (answer,) = response.responses[0].partition_responses
        if acks == ACKS_ALL and answer.error_code == ErrorCode.NONE:
            for offset, value in enumerate(values, answer.base_offset):
                self._load.history.acknowledge(Told(self._key, offset, value, began), self._load.world.now)

    async def wait_for_answers(self) -> None:
        """Wait until all requests are answered. Raises `ConnectionLost` if no answer comes for `WAIT_SECONDS_MAX`."""
        clock = self._env.clock
        while self._asked:
            with clock.timeout_at(clock.monotonic() + WAIT_SECONDS_MAX) as waiting:
                await self._conn.readable()
            if waiting.expired:
                raise ConnectionLost("answers nothing")
            self.take_answers()
