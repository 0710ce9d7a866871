"""The basic workload: topics, producers and readers that record all answers in a history, the final check;
other workloads share its state. PORTED.

Each value is unique and begins with its producer's name, so that a history shows losses, duplicates and wrong
order. Producers send lists of records as one operation (`sim.load.producing`), or single records through the
product's own async producer. Readers follow all partitions from the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import attrs

from odradek.client.admin import NewTopic, create_topics
from odradek.client.core.client_config import ClientConfig
from odradek.client.core.partition_offsets import EARLIEST, LATEST, list_offsets
from odradek.client.errors import ClientError, ConnectionBroken, RequestTimedOut, is_retriable
from odradek.client.shells.aio import AsyncClient
from odradek.client.shells.aio_producer import AsyncProducer, SentRecord
from odradek.env.ports import Event
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition
from sim.history import History, Told
from sim.load.attachments import must_be_whole
from sim.load.fetching import FetchConfig, Fetcher
from sim.load.producing import ProduceConfig, Producing, RecordToSend
from sim.machine.world import World

REQUEST_SECONDS = 20.0
UNAVAILABLE_SECONDS = 300.0
"""How many seconds a reader tolerates partitions without a leader: longer than any storm."""
FETCH_BYTES_MAX = 1 << 18
"""The largest Fetch answer in bytes. Even the slowest link transfers an answer of this size well within
`REQUEST_SECONDS`.
"""
_EXISTS = ErrorCode.TOPIC_ALREADY_EXISTS
ROT_SECONDS = 0.5
END_SECONDS_MAX = 90.0
"""How many seconds may pass until a new leader knows the end of its committed records.

The new leader waits for each follower that is still in the ISR (`replica.lag.time.max.ms`). A follower may wait for an
answer on a silently lost connection (`replica.socket.timeout.ms`, 30 s).
"""
FETCH_WAIT_MS, SLOW_FETCH_WAIT_MS = 500, 10_000
SLOW_REST_SECONDS = 20.0
SLOW_SESSION_MS, SLOW_HEARTBEAT_MS, SLOW_POLL_INTERVAL_MS = 45_000, 12_000, 90_000
"""Settings of group members, in milliseconds, in runs that last for hours."""
IN_FLIGHT_MAX = 200
"""How many records of one async producer may be without an outcome."""


@attrs.define(eq=False)
class Workload:
    """The basic workload, and the state that other workloads share. `topics` has the number of partitions by topic
    name.
    """

    world: World
    history: History
    topics: Mapping[str, int]
    bootstrap: Sequence[tuple[str, int]]
    request_seconds: float = REQUEST_SECONDS
    delivery_seconds: float = 60.0
    """How many seconds producers try to send a record. After that its outcome is unknown."""
    pace: float = 1.0
    """The factor by which all pauses of clients are multiplied."""
    is_over: bool = False
    """If set to True, producers and readers end."""
    ends: Mapping[TopicPartition, int] | None = None
    """The end offsets after the last record, for readers that must read everything; None until they are known."""
    positions: dict[str, dict[TopicPartition, int]] = attrs.Factory(dict)
    """The positions of readers that must read everything: by reader's name, the position in each partition."""

    @property
    def partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic, index) for topic, count in self.topics.items() for index in range(count)
        ]

    @property
    def is_slow(self) -> bool:
        """True in a run that lasts for hours. Clients of a slow run send requests seldom and wait for a long time."""
        return self.pace > 1.0

    @property
    def fetch_wait_ms(self) -> int:
        """The longest wait of a Fetch for records, in milliseconds."""
        return SLOW_FETCH_WAIT_MS if self.is_slow else FETCH_WAIT_MS

    async def rest_between_polls(self) -> None:
        """Wait before a reader's next poll, if the run is slow."""
        if self.is_slow and not self.is_over:
            await self.world.sleep(SLOW_REST_SECONDS)

    async def wait_for_life(self, ended: Event, seconds: float) -> None:
        """Wait until a program has ended or has run for `seconds`; in a slow run wait for longer. Return at the
        latest when the workload ends.
        """
        if not self.is_slow:
            await self.world.wait(ended, seconds)
            return
        deadline = self.world.now + seconds * self.pace
        while not (ended.is_set() or self.is_over) and self.world.now < deadline:
            await self.world.wait(ended, min(SLOW_REST_SECONDS, deadline - self.world.now))

    @property
    def _send_seconds(self) -> float:
        return min(self.request_seconds, self.delivery_seconds / 2)

    def client(self, name: str, request_seconds: float | None = None) -> AsyncClient:
        """Create a client on the machine with this name."""
        seconds = self.request_seconds if request_seconds is None else request_seconds
        config = ClientConfig(client_id=name, request_timeout=seconds, fail_fast=False)
        return AsyncClient(self.world.node_env(name), self.world.tasks, self.bootstrap, config)

    async def create_topics(self, client: AsyncClient, wanted: Sequence[NewTopic], timeout: float) -> None:
        """Create the topics. Raises the cluster's errors. A request without an answer is sent again. So a topic that
        exists already is accepted, since only this client creates these topics. As in Kafka, the broker repeats its
        request to the controller. On a silently lost connection it waits for 30 s, which is longer than the client
        waits.
        """
        while True:
            try:
                created = await client.run(create_topics(client.core, wanted, timeout=timeout))
            except (ConnectionBroken, RequestTimedOut):
                continue
            for topic in created:
                exists = isinstance(topic.error, KafkaError) and topic.error.code is _EXISTS
                if topic.error is not None and not exists:
                    raise topic.error
            return

    def start(
        self, producers: Sequence[str], async_producers: Sequence[str], readers: Sequence[str]
    ) -> list[Event]:
        """Start the producers and readers. Each event is set when its client has ended, after `is_over`."""
        spawn = self.world.spawn
        return [
            *(spawn(self.produce, name) for name in producers),
            *(spawn(self.produce_one_by_one, name) for name in async_producers),
            *(spawn(self.consume, name) for name in readers),
        ]

    def _next_value(self, name: str, serial: int, random: Random) -> bytes:
        return b"%s:%d:" % (name.encode(), serial) + random.randbytes(random.choice((0, 10, 300, 3000)))

    async def produce(self, name: str) -> None:
        """Send lists of records until the workload ends."""
        client = self.client(name, self._send_seconds)
        clock = self.world.node_env(name).clock
        random = Random(f"{self.world.seed}/{name}")
        producing = Producing(client.core, ProduceConfig(batch_bytes_max=random.choice((300, 4096, 1 << 18))))
        topics = list(self.topics)
        serial = operation = 0
        while not self.is_over:
            records = []
            operation += 1
            for _ in range(random.choice((1, 1, 5, 40))):
                topic = random.choice(topics)
                partition = random.randrange(self.topics[topic])
                value = self._next_value(name, serial, random)
                serial += 1
                self.history.send(
                    TopicPartition(topic, partition), value, name, self.world.now, operation=operation
                )
                records.append(RecordToSend(topic, value, partition=partition, timestamp_ms=clock.wall_ms()))
            # Some batches may be acknowledged long before the whole operation returns.
            began = self.world.now
            try:
                deliveries = await client.run(producing.produce(records, timeout=self.delivery_seconds))
            except (KafkaError, ClientError):
                self.history.failed_sends += len(records)
                continue
            for delivery in deliveries:
                if delivery.error is not None:
                    self.history.failed_sends += len(delivery.indexes)
                    continue
                for offset, index in enumerate(delivery.indexes, delivery.base_offset):
                    value = records[index].value or b""
                    partition_key = TopicPartition(delivery.topic, delivery.partition)
                    self.history.acknowledge(Told(partition_key, offset, value, began), self.world.now)
            await clock.sleep_until(clock.monotonic() + random.uniform(0.0, 0.2) * self.pace)
        client.close()

    async def produce_one_by_one(self, name: str) -> None:
        """Send single records as programs do, with several batches in flight, until the workload ends."""
        env = self.world.node_env(name)
        random = Random(f"{self.world.seed}/{name}")
        servers = ",".join(f"{host}:{port}" for host, port in self.bootstrap)
        producer = AsyncProducer(
            env,
            self.world.tasks,
            bootstrap_servers=servers,
            client_id=name,
            batch_size=random.choice((500, 16384)),
            linger_ms=random.choice((0, 5, 50)),
            request_timeout_ms=int(self._send_seconds * 1000),
            delivery_timeout_ms=int(self.delivery_seconds * 1000),
            max_block_ms=int(self.delivery_seconds * 1000),
        )
        topics = list(self.topics)
        under_way: list[tuple[TopicPartition, bytes, float, SentRecord]] = []
        serial = 0
        while not self.is_over:
            topic = random.choice(topics)
            key = TopicPartition(topic, random.randrange(self.topics[topic]))
            value = self._next_value(name, serial, random)
            serial += 1
            self.history.send(key, value, name, self.world.now)
            began = self.world.now
            try:
                sent = await producer.send(topic, value, partition=key.partition)
            except (KafkaError, ClientError):
                self.history.failed_sends += 1
                continue
            under_way.append((key, value, began, sent))
            if len(under_way) >= IN_FLIGHT_MAX or random.random() < 0.02:
                await self._settle(under_way)
            await env.clock.sleep_until(env.clock.monotonic() + random.uniform(0.0, 0.05) * self.pace)
        await self._settle(under_way)
        await producer.close()

    async def _settle(self, under_way: list[tuple[TopicPartition, bytes, float, SentRecord]]) -> None:
        """Wait until all these records have outcomes, and record these in the history."""
        for key, value, began, sent in under_way:
            try:
                where = await sent.result()
            except (KafkaError, ClientError):
                self.history.failed_sends += 1
                continue
            if where.offset >= 0:
                self.history.acknowledge(Told(key, where.offset, value, began), self.world.now)
        under_way.clear()

    async def consume(self, name: str) -> None:
        """Read all partitions from the beginning, until the workload ends."""
        client = self.client(name)
        fetcher = Fetcher(
            client.core,
            FetchConfig(
                reset_to=EARLIEST,
                unavailable_timeout=UNAVAILABLE_SECONDS,
                max_bytes=FETCH_BYTES_MAX,
                max_wait=self.fetch_wait_ms / 1000,
            ),
        )
        for key in self.partitions:
            fetcher.assign(*key, 0)
        self.history.assign(name, self.partitions, self.world.now)
        while not self.is_over:
            # All answers of this poll were requested after `began`: no answer is left over from an earlier poll.
            began = self.world.now
            try:
                polled = await client.run(fetcher.poll(timeout=10 * REQUEST_SECONDS))
            except CorruptBatch as error:
                await self._meet_rot(name, error)
                continue
            except (KafkaError, ClientError) as error:
                # Go on after a retriable error: in a run that lasts for hours, a partition may have no leader for
                # longer than the client tolerates.
                if not is_retriable(error):
                    raise
                self.world.trace.record(self.world.now, name, "poll", error)
                # Once the fetcher has raised this error, later polls raise it at once. So only a pause lets virtual
                # time advance.
                await self.world.sleep(ROT_SECONDS)
                continue
            for fetched in polled:
                key = TopicPartition(fetched.topic, fetched.partition)
                try:
                    records = fetched.records()
                except CorruptBatch as error:
                    fetcher.assign(*key, fetched.start_offset)
                    await self._meet_rot(name, error)
                    continue
                for each in records:
                    must_be_whole(f"{name}: {key} {each.offset}", each.key, each.value or b"", each.headers)
                told = [Told(key, each.offset, each.value or b"", began) for each in records]
                self.history.see(name, told, self.world.now)
            await self.rest_between_polls()
        client.close()

    async def _meet_rot(self, name: str, error: CorruptBatch) -> None:
        """Record that a client has read damaged bytes, and pause before it reads again."""
        self.world.trace.record(self.world.now, name, "poll", error)
        await self.world.sleep(ROT_SECONDS)

    def reader_is_done(self, positions: Mapping[TopicPartition, int]) -> bool:
        """True if a reader at these positions has read everything up to the final end of its partitions."""
        ends = self.ends
        return ends is not None and all(position >= ends[key] for key, position in positions.items())

    async def find_ends(self, client: AsyncClient) -> None:
        """Record the end offsets of all partitions, after the last record."""
        found = await client.run(
            list_offsets(client.core, dict.fromkeys(self.partitions, LATEST), timeout=END_SECONDS_MAX)
        )
        self.ends = {key: listed.offset for key, listed in found.items()}

    async def check(self, client: AsyncClient) -> Mapping[str, int]:
        """Read all records, and check them against the history. Raises `SafetyViolation`. Return counts, each with a
        name.
        """
        partitions = self.partitions
        # This is longer than a request may wait at the leader. If the request's bytes are delayed for even longer,
        # the client sends the request again.
        seconds = END_SECONDS_MAX
        starts = await client.run(
            list_offsets(client.core, dict.fromkeys(partitions, EARLIEST), timeout=seconds)
        )
        ends = await client.run(list_offsets(client.core, dict.fromkeys(partitions, LATEST), timeout=seconds))
        fetcher = Fetcher(client.core, FetchConfig(max_bytes=FETCH_BYTES_MAX))
        content: dict[TopicPartition, list[tuple[int, bytes]]] = {key: [] for key in partitions}
        for key in partitions:
            fetcher.assign(*key, starts[key].offset)
        while any(fetcher.positions[key] < ends[key].offset for key in partitions):
            for fetched in await client.run(fetcher.poll(timeout=1.0)):
                key = TopicPartition(fetched.topic, fetched.partition)
                for each in fetched.records():
                    must_be_whole(f"{key} {each.offset}", each.key, each.value or b"", each.headers)
                    content[key].append((each.offset, each.value or b""))
        began = self.world.now
        found = sum(self.history.check(key, starts[key].offset, content[key]) for key in partitions)
        for key in partitions:
            told = [Told(key, offset, value, began) for offset, value in content[key]]
            self.history.see("auditor", told, self.world.now, final=True)
        return {
            "records": found,
            "sent": sum(map(len, self.history.sent.values())),
            "acknowledged": len(self.history.acknowledged),
            "deleted": sum(told.offset < starts[told.partition].offset for told in self.history.acknowledged),
            "read": len(self.history.read),
            "failed": self.history.failed_sends,
        }
