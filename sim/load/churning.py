"""Topics that are created, written, searched and deleted during a storm, without guarantees for their records.
They have several segments, and retention deletes their records. PORTED.

Nothing is guaranteed for the records written here. The purpose is that segments are rolled, indexed, searched,
flushed and removed, and that topics are deleted while tasks use their files.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from odradek.client.admin import NewTopic, create_topics, delete_topics
from odradek.client.admin.admin_logs import delete_records
from odradek.client.core.operation import Operation
from odradek.client.core.partition_offsets import EARLIEST, LATEST, list_offsets
from odradek.client.errors import ClientError
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition
from sim.load.producing import ProduceConfig, Producing, RecordToSend
from sim.load.workload import Workload

CALL_SECONDS = 5.0
CALM_SECONDS_MAX = 0.5
PARTITIONS = 3
BATCH_BYTES_MAX = 600
SEGMENT_BYTES = ("1000", "5000")
RETENTION_MS = ("-1", "1000", "10000")
RETENTION_BYTES = ("-1", "3000")
DELETE_DELAY_MS = ("0", "1000")

__all__ = ["Churning"]


class Churning:
    """A client that repeats these steps: it creates its own topic, writes to it, looks up timestamps, deletes records,
    and deletes the topic.
    """

    def __init__(self, load: Workload, name: str, replicas: int) -> None:
        self._load = load
        self._name = name
        self._topic = f"{name}-topic"
        self._replicas = replicas
        self._random = Random(f"{load.world.seed}/{name}")
        self._client = load.client(name, CALL_SECONDS)
        self._producing = Producing(
            self._client.core, ProduceConfig(acks=1, batch_bytes_max=BATCH_BYTES_MAX, auto_create=False)
        )
        self.is_over = False
        """If set to True, `run` ends after the present step."""

    async def run(self) -> None:
        """Take one random step after another until `is_over`. Errors of steps are only recorded."""
        world, random = self._load.world, self._random
        steps: tuple[Callable[[], Operation[object]], ...] = (
            self._make,
            self._make,
            *(self._write,) * 6,
            self._look_up,
            self._trim,
            self._delete,
        )
        while not self.is_over:
            step = random.choice(steps)
            try:
                await self._client.run(step())
            except (KafkaError, ClientError) as error:
                world.trace.record(world.now, self._name, "churn", step.__name__, error)
            await world.sleep(random.uniform(0.0, CALM_SECONDS_MAX) * self._load.pace)
        self._client.close()

    def _make(self) -> Operation[object]:
        choice = self._random.choice
        configs = {
            "internal.segment.bytes": choice(SEGMENT_BYTES),
            "retention.ms": choice(RETENTION_MS),
            "retention.bytes": choice(RETENTION_BYTES),
            "file.delete.delay.ms": choice(DELETE_DELAY_MS),
            "min.insync.replicas": choice(("1", "2")),
        }
        topic = NewTopic(self._topic, PARTITIONS, self._replicas, configs)
        return create_topics(self._client.core, [topic], timeout=CALL_SECONDS)

    def _delete(self) -> Operation[object]:
        return delete_topics(self._client.core, [self._topic], timeout=CALL_SECONDS)

    def _write(self) -> Operation[object]:
        random, now_ms = self._random, self._now_ms()
        records = [
            RecordToSend(
                self._topic,
                random.randbytes(random.choice((10, 300))),
                partition=random.randrange(PARTITIONS),
                timestamp_ms=now_ms,
            )
            for _ in range(random.choice((1, 20, 60)))
        ]
        return self._producing.produce(records, timeout=CALL_SECONDS)

    def _look_up(self) -> Operation[object]:
        moment = self._random.choice((EARLIEST, LATEST, self._now_ms() - self._random.randint(0, 20_000)))
        wanted = {TopicPartition(self._topic, index): moment for index in range(PARTITIONS)}
        return list_offsets(self._client.core, wanted, timeout=CALL_SECONDS)

    def _trim(self) -> Operation[object]:
        key = TopicPartition(self._topic, self._random.randrange(PARTITIONS))
        return delete_records(self._client.core, {key: self._random.randint(0, 50)}, timeout=CALL_SECONDS)

    def _now_ms(self) -> int:
        return self._load.world.node_env(self._name).clock.wall_ms()
