"""Workload: the clients of a compacted topic: idempotent writers of few keys, a reader of everything, an operator.
PORTED.

All that they learn goes into a `KeyedHistory`. New writers replace earlier writers, so that the log has producers
that no longer write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from odradek.client.admin import NewTopic
from odradek.client.admin.admin_configs import (
    AlterConfig,
    ConfigResource,
    ResourceType,
    incremental_alter_configs,
)
from odradek.client.admin.admin_logs import delete_records
from odradek.client.core.partition_offsets import EARLIEST, LATEST, list_offsets
from odradek.client.errors import ClientError
from odradek.client.shells.aio import AsyncClient
from odradek.env.ports import Event
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.records import Record, records
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition
from sim.history import SafetyViolation
from sim.load.fetching import FetchConfig, Fetcher
from sim.load.keyed.keyed_history import Found, KeyedHistory, table_of
from sim.load.keyed.keyed_plan import PARTITIONS, TOPIC, KeyedPlan
from sim.load.producing import ProduceConfig, Producing, RecordToSend
from sim.load.workload import END_SECONDS_MAX, FETCH_BYTES_MAX, ROT_SECONDS, UNAVAILABLE_SECONDS, Workload
from sim.replicas import StoredBatch

WRITERS = ("keyed-1", "keyed-2")
READER = "keyed-reader"
OPERATOR = "keyed-operator"
CALL_SECONDS = 10.0
POLICIES = ("compact", "compact", "compact,delete", "delete", "")
ID = "id"
"""The name of the header that has a record's id."""
CLOCKS_OFF_MS = 7_200_000
"""An upper limit of the difference between any two clocks of a run, in milliseconds, if a fault sets clocks."""
CLOCKS_NEAR_MS = 1_000
"""An upper limit of the difference between any two clocks of a run, in milliseconds, if no fault sets clocks."""
CLOCK_KINDS = ("clocks", "drift")
DECOMPRESSED_BYTES_MAX = 1 << 20
LIFE_OPERATIONS = (5, 40)
"""The smallest and largest number of operations after which a writer begins again with another producer id."""

__all__ = ["READER", "WRITERS", "Keying"]


class Keying:
    """All clients of the compacted topic in one run."""

    def __init__(self, load: Workload, replicas: int, storm_kinds: Sequence[str]) -> None:
        self._load = load
        self._replicas = replicas
        self.plan = KeyedPlan.draw(Random(f"{load.world.seed}/{TOPIC}"))
        clocks_off_ms = CLOCKS_OFF_MS if {*CLOCK_KINDS} & {*storm_kinds} else CLOCKS_NEAR_MS
        self.history = KeyedHistory(
            self.plan.delete_retention_ms, self.plan.min_compaction_lag_ms, clocks_off_ms
        )
        self._tables: list[dict[bytes, Found]] = [{} for _ in range(PARTITIONS)]
        """For each partition, the newest record of each key, as the reader knows it."""
        self._ends: Mapping[TopicPartition, int] | None = None
        self._gone = self._serial = 0

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]

    def topic(self, configs: Mapping[str, str]) -> NewTopic:
        """Describe the topic. Its configuration is `configs`, which all topics of the run have, with the plan's own
        keys.
        """
        return NewTopic(TOPIC, PARTITIONS, self._replicas, {**configs, **self.plan.topic_configs()})

    def start_workers(self) -> list[Event]:
        """Start the writers and the operator. Each event is set when its task has ended."""
        found = [self._load.world.spawn(self._write, name) for name in WRITERS]
        return [*found, self._load.world.spawn(self._operate, OPERATOR)]

    # -- writers

    async def _write(self, name: str) -> None:
        world, load, random = self._load.world, self._load, Random(f"{self._load.world.seed}/{name}")
        client = load.client(name)
        left = 0
        while not load.is_over:
            if not left:
                left = random.randint(*LIFE_OPERATIONS)
                producing = self._producing(client, random)
            left -= 1
            await self._write_some(client, producing, name, random)
            await world.sleep(random.uniform(0.0, 0.3) * load.pace)
        client.close()

    def _producing(self, client: AsyncClient, random: Random) -> Producing:
        codec, batch_bytes_max = random.choice((0, 0, 1, 3, 4)), random.choice((200, 1000, 4096))
        return Producing(
            client.core,
            ProduceConfig(compression_type=codec, batch_bytes_max=batch_bytes_max, auto_create=False),
        )

    async def _write_some(self, client: AsyncClient, producing: Producing, name: str, random: Random) -> None:
        load, plan = self._load, self.plan
        clock = load.world.node_env(name).clock
        partition = random.randrange(PARTITIONS)
        sent: list[bytes] = []
        batch: list[RecordToSend] = []
        for _ in range(random.choice((1, 1, 4, 15))):
            self._serial += 1
            record_id = b"%s:%d" % (name.encode(), self._serial)
            key = b"key-%d" % min(random.randrange(plan.keys), random.randrange(plan.keys))
            value = (
                None if random.random() < plan.tombstones else record_id + bytes(random.choice((0, 20, 150)))
            )
            self.history.send(record_id, partition, key, value, load.world.now)
            sent.append(record_id)
            batch.append(RecordToSend(TOPIC, value, key, ((ID, record_id),), partition, clock.wall_ms()))
        try:
            deliveries = await client.run(producing.produce(batch, timeout=load.delivery_seconds))
        except (KafkaError, ClientError) as error:
            load.world.trace.record(load.world.now, name, "keyed", error)
            return
        for delivery in deliveries:
            if delivery.error is None and delivery.base_offset >= 0:
                for offset, index in enumerate(delivery.indexes, delivery.base_offset):
                    self.history.acknowledge(sent[index], offset)

    # -- the operator

    async def _operate(self, name: str) -> None:
        """Switch compaction off and on, and delete the oldest records, as far as the plan has these steps."""
        load, random = self._load, Random(f"{self._load.world.seed}/{name}")
        client = load.client(name, CALL_SECONDS)
        while not load.is_over:
            await load.world.sleep(random.uniform(0.5, 4.0) * load.pace)
            try:
                if self.plan.changes_policy:
                    await self._change_policy(client, random.choice(POLICIES))
                if self.plan.trims and random.random() < 0.3:
                    await self._trim(client, random)
            except (KafkaError, ClientError) as error:
                load.world.trace.record(load.world.now, name, "keyed", error)
        while self.plan.changes_policy:
            try:
                await self._change_policy(client, "compact")
                break
            except (KafkaError, ClientError) as error:
                load.world.trace.record(load.world.now, name, "keyed", error)
        client.close()

    @staticmethod
    async def _change_policy(client: AsyncClient, policy: str) -> None:
        changes = {ConfigResource(ResourceType.TOPIC, TOPIC): [AlterConfig("cleanup.policy", policy)]}
        ((_, error),) = await client.run(
            incremental_alter_configs(client.core, changes, timeout=CALL_SECONDS)
        )
        if error is not None:
            raise error

    async def _trim(self, client: AsyncClient, random: Random) -> None:
        key = random.choice(self.partitions)
        listed = await client.run(list_offsets(client.core, {key: LATEST}, timeout=CALL_SECONDS))
        offset = random.randint(0, listed[key].offset // 2)
        self.history.ask_to_delete(key.partition, offset)
        await client.run(delete_records(client.core, {key: offset}, timeout=CALL_SECONDS))

    # -- the reader

    async def read(self) -> None:
        """Read everything from the beginning, and keep the newest record of each key, until the end. Raises
        `SafetyViolation`.
        """
        client = self._load.client(READER)
        await self._read_to_the_end(client, READER, self._take)
        client.close()

    def _take(self, partition: int, found: Sequence[Found]) -> None:
        for each in found:
            self.history.see(READER, partition, each)
            self._tables[partition][each.key] = each

    async def _read_to_the_end(
        self, client: AsyncClient, who: str, take: Callable[[int, Sequence[Found]], None]
    ) -> None:
        world = self._load.world
        fetcher = Fetcher(
            client.core,
            FetchConfig(
                reset_to=EARLIEST,
                unavailable_timeout=UNAVAILABLE_SECONDS,
                max_bytes=FETCH_BYTES_MAX,
                max_wait=self._load.fetch_wait_ms / 1000,
            ),
        )
        positions: dict[TopicPartition, int] = dict.fromkeys(self.partitions, 0)
        for key in self.partitions:
            fetcher.assign(*key, 0)
        self._load.positions[who] = positions
        while self._ends is None or any(positions[key] < end for key, end in self._ends.items()):
            try:
                polled = await client.run(fetcher.poll(timeout=1.0))
                for each in polled:
                    take(each.partition, [_found(record) for record in each.records()])
                    positions[TopicPartition(each.topic, each.partition)] = each.next_offset
            except CorruptBatch as error:
                # Seek back: the fetcher's position is already after the damaged batches, which must be fetched
                # again.
                world.trace.record(world.now, who, "poll", error)
                for key, position in positions.items():
                    fetcher.assign(*key, position)
                await world.sleep(ROT_SECONDS)
            except (KafkaError, ClientError) as error:
                world.trace.record(world.now, who, "poll", error)
            await self._load.rest_between_polls()

    # -- the end

    async def find_ends(self, client: AsyncClient) -> None:
        """Record the end offsets of the partitions, after the last record."""
        asked = dict.fromkeys(self.partitions, LATEST)
        found = await client.run(list_offsets(client.core, asked, timeout=END_SECONDS_MAX))
        self._ends = {key: listed.offset for key, listed in found.items()}

    async def check(self, machine: str) -> None:
        """Read all remaining records, and check them. Raises `SafetyViolation`."""
        left: list[list[Found]] = [[] for _ in range(PARTITIONS)]
        client = self._load.client(machine)
        await self._read_to_the_end(client, machine, lambda partition, found: left[partition].extend(found))
        client.close()
        # A missing record may have been removed at any time until its place was read.
        now = self._load.world.now
        for partition, found in enumerate(left):
            self._gone += self.history.check(partition, found, now)
            self.history.check_reader(READER, partition, self._tables[partition], table_of(found), now)

    def check_disks(self, logs_of: Callable[[str, int], Mapping[str, Sequence[StoredBatch]]]) -> None:
        """Check that the replicas agree on disk. Raises `SafetyViolation`."""
        for key in self.partitions:
            logs = logs_of(*key)
            if len(logs) != self._replicas:
                raise SafetyViolation(
                    f"{key}: the replicas are on {', '.join(logs)}, but there must be {self._replicas}"
                )
            ends = {name: log[-1].next_offset if log else 0 for name, log in logs.items()}
            if len(set(ends.values())) > 1:
                raise SafetyViolation(f"{key}: replicas end at {ends}")
            self.history.check_replicas(
                key.partition, {name: _records(log) for name, log in logs.items()}, self._load.world.now
            )

    def figures(self) -> dict[str, int]:
        """Count the records with known offsets, and the records that compaction has removed."""
        return {"keyed": self.history.known, "compacted away": self._gone}


def _found(record: Record) -> Found:
    record_id = next((value for name, value in record.headers if name == ID), None)
    return Found(record.offset, record_id or b"", record.key or b"", record.value)


def _records(log: Sequence[StoredBatch]) -> list[Found]:
    return [
        _found(record)
        for batch in log
        for record in records(batch.data, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    ]
