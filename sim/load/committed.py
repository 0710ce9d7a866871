"""A consumer with isolation level read_committed that reads assigned partitions, for workloads that write
transactions. PORTED.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from odradek.client.errors import ClientError
from odradek.client.shells.aio_consumer import AsyncConsumer
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition
from sim.load.workload import END_SECONDS_MAX, FETCH_BYTES_MAX, ROT_SECONDS, Workload
from sim.machine.world import Liveness

CLOSE_SECONDS = 10.0
READ_SECONDS_MAX = 120.0
Take = Callable[[TopicPartition, list[tuple[int, bytes, bytes]]], None]
"""Called with a partition and its new records in order: (offset, key, value)."""

__all__ = ["CommittedReader"]


class CommittedReader:
    """Reads its partitions from the beginning, with isolation level read_committed."""

    def __init__(self, load: Workload, machine: str, keys: Sequence[TopicPartition]) -> None:
        self._load = load
        self._machine = machine
        self._keys = keys
        self._consumer = AsyncConsumer(
            load.world.node_env(machine),
            load.world.tasks,
            {
                "bootstrap.servers": ",".join(f"{host}:{port}" for host, port in load.bootstrap),
                "client.id": machine,
                "isolation.level": "read_committed",
                "enable.auto.commit": "false",
                "auto.offset.reset": "earliest",
                "fetch.max.bytes": str(FETCH_BYTES_MAX),
                "fetch.max.wait.ms": str(load.fetch_wait_ms),
                "request.timeout.ms": str(int(load.request_seconds * 1000)),
            },
        )
        self._consumer.assign(list(keys))
        self._consumer.seek_to_beginning(*keys)

    async def read_some(self, take: Take) -> None:
        """Poll once, and pass the records to `take`."""
        world = self._load.world
        try:
            records = await self._consumer.poll(1.0)
        except (KafkaError, ClientError) as error:
            world.trace.record(world.now, self._machine, "poll", error)
            if isinstance(error.__cause__, CorruptBatch):
                await world.sleep(ROT_SECONDS)
            return
        found: dict[TopicPartition, list[tuple[int, bytes, bytes]]] = {}
        for record in records:
            key = TopicPartition(record.topic, record.partition)
            found.setdefault(key, []).append((record.offset, record.key or b"", record.value or b""))
        for key, each in found.items():
            take(key, each)

    async def follow(self, take: Take) -> None:
        """Read until the workload ends, then close the consumer."""
        while not self._load.is_over:
            await self.read_some(take)
            await self._load.rest_between_polls()
        await self._consumer.close(CLOSE_SECONDS)

    async def read_all(self, take: Take) -> None:
        """Read up to the present end offsets, then close. Raises `Liveness` if that takes more than
        `READ_SECONDS_MAX`.
        """
        world, consumer, keys = self._load.world, self._consumer, self._keys
        ends = await consumer.end_offsets(list(keys), END_SECONDS_MAX)
        deadline = world.now + READ_SECONDS_MAX
        while [key for key in keys if await consumer.position(key, END_SECONDS_MAX) < ends[key]]:
            if world.now > deadline:
                raise Liveness(f"seed {world.seed}: {self._machine} does not come to {ends}")
            await self.read_some(take)
        await consumer.close(CLOSE_SECONDS)
