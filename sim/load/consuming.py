"""Workload: the product's own consumer, without a group (also from a near replica) or in a group, and what each
must read. PORTED.

In addition to `sim.history`, this module checks two rules. A consumer without a group reads every offset once, in
order. A group reads every acknowledged record at least once. After the faults have ended, both must read to the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from odradek.client.errors import ClientError
from odradek.client.shells.aio_consumer import AsyncConsumer
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition
from sim.checks.bounds import GroupTimeouts
from sim.checks.groups.group_availability import GroupTerms
from sim.history import SafetyViolation, Told
from sim.load.attachments import must_be_whole
from sim.load.workload import (
    FETCH_BYTES_MAX,
    REQUEST_SECONDS,
    ROT_SECONDS,
    SLOW_HEARTBEAT_MS,
    SLOW_POLL_INTERVAL_MS,
    SLOW_SESSION_MS,
    Workload,
)

GROUP = "readers"
POLL_SECONDS = 1.0
SESSION_SECONDS = (6, 20)
REBALANCE_SECONDS = 60
HEARTBEAT_MS = 1_500
CLOSE_SECONDS = 5.0

__all__ = ["GroupReading", "follow"]


def _consumer(load: Workload, name: str, **settings: object) -> AsyncConsumer:
    servers = ",".join(f"{host}:{port}" for host, port in load.bootstrap)
    return AsyncConsumer(
        load.world.node_env(name),
        load.world.tasks,
        {
            "bootstrap.servers": servers,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "fetch.max.bytes": str(FETCH_BYTES_MAX),
            "request.timeout.ms": str(int(load.request_seconds * 1000)),
            "fetch.max.wait.ms": str(load.fetch_wait_ms),
            **settings,
        },
    )


async def follow(load: Workload, name: str, rack: str, partitions: Sequence[TopicPartition]) -> None:
    """Read partitions from beginning to end, from a replica in `rack` if the rack has a replica.

    Raises `SafetyViolation` when an offset is missing or comes twice.
    """
    consumer = _consumer(load, name, **{"client.rack": rack, "auto.offset.reset": "none"})
    consumer.assign(partitions)
    next_offsets: dict[TopicPartition, int] = dict.fromkeys(partitions, 0)
    consumer.seek_to_beginning(*partitions)
    load.positions[name] = next_offsets
    load.history.assign(name, partitions, load.world.now)
    while not load.reader_is_done(next_offsets):
        began = load.world.now
        try:
            records = await consumer.poll(POLL_SECONDS)
        except (KafkaError, ClientError) as error:
            load.world.trace.record(load.world.now, name, "poll", error)
            if isinstance(error.__cause__, CorruptBatch):
                await load.world.sleep(ROT_SECONDS)
            continue
        told: list[Told] = []
        for record in records:
            key = TopicPartition(record.topic, record.partition)
            if record.offset != next_offsets[key]:
                raise SafetyViolation(f"{name}: {key} {record.offset} follows {next_offsets[key] - 1}")
            must_be_whole(f"{name}: {key} {record.offset}", record.key, record.value or b"", record.headers)
            next_offsets[key] = record.offset + 1
            told.append(Told(key, record.offset, record.value, began))
        load.history.see(name, told, load.world.now)
        await load.rest_between_polls()
    await consumer.close(CLOSE_SECONDS)


class GroupReading:
    """The members of one group, which commit the offsets that they have read."""

    def __init__(self, load: Workload) -> None:
        self._load = load
        self._seen: dict[tuple[TopicPartition, int], bytes] = {}
        self._committed: dict[TopicPartition, int] = dict.fromkeys(load.partitions, 0)

    def terms(self, members: Sequence[str]) -> GroupTerms:
        """Return the group for `GroupAvailability`, with these members."""
        load = self._load
        session_ms = SLOW_SESSION_MS if load.is_slow else max(SESSION_SECONDS) * 1000
        timeouts = GroupTimeouts(session_ms / 1000, self._rebalance_ms / 1000, REQUEST_SECONDS)
        return GroupTerms(GROUP, members, timeouts, lambda: load.reader_is_done(self._committed), stays=True)

    @property
    def _rebalance_ms(self) -> int:
        return SLOW_POLL_INTERVAL_MS if self._load.is_slow else REBALANCE_SECONDS * 1000

    async def member(self, name: str) -> None:
        """Read the partitions that the group assigns to this member, until everything is read."""
        load = self._load
        load.positions[GROUP] = self._committed
        random = Random(f"{load.world.seed}/{name}")
        session_ms = random.choice(SESSION_SECONDS) * 1000
        consumer = _consumer(
            load,
            name,
            **{
                "group.id": GROUP,
                "session.timeout.ms": str(SLOW_SESSION_MS if load.is_slow else session_ms),
                # If a firewall has silently dropped the connection, the client gives up its JoinGroup request after
                # this time, as Kafka's clients do.
                "max.poll.interval.ms": str(self._rebalance_ms),
                "heartbeat.interval.ms": str(SLOW_HEARTBEAT_MS if load.is_slow else HEARTBEAT_MS),
                "max.poll.records": "200",
            },
        )
        consumer.subscribe(list(load.topics))
        while not load.reader_is_done(self._committed):
            began = load.world.now
            before = consumer.assignment()
            try:
                told: list[Told] = []
                for record in await consumer.poll(POLL_SECONDS):
                    key = TopicPartition(record.topic, record.partition)
                    self._seen[key, record.offset] = record.value
                    told.append(Told(key, record.offset, record.value, began))
                moved = sorted(before ^ consumer.assignment())
                load.history.see(name, told, load.world.now, rebalanced=moved)
                held = sorted(consumer.assignment())
                positions = {key: await consumer.position(key) for key in held}
                if positions:
                    await consumer.commit(positions)
                for key in held:
                    self._committed[key] = max(self._committed[key], positions[key])
                await load.rest_between_polls()
            except (KafkaError, ClientError) as error:
                load.world.trace.record(load.world.now, name, "group", error)
                if isinstance(error.__cause__, CorruptBatch):
                    await load.world.sleep(ROT_SECONDS)
        await consumer.close(CLOSE_SECONDS)

    def check(self) -> None:
        """Check that every acknowledged record was read by some member, unless it was deleted. Raises
        `SafetyViolation`.
        """
        history = self._load.history
        for told in history.acknowledged:
            if told.offset < history.deleted_below.get(told.partition, 0):
                continue
            if (told.partition, told.offset) not in self._seen:
                raise SafetyViolation(
                    f"group: nobody has read {told.value[:40]!r} at {told.partition} {told.offset}"
                )

    async def check_commits(self, name: str) -> None:
        """Check that offsets whose commits were acknowledged are still committed. Raises `SafetyViolation`."""
        consumer = _consumer(self._load, name, **{"group.id": GROUP})
        found = await consumer.committed(self._load.partitions, 10 * REQUEST_SECONDS)
        for key, offset in self._committed.items():
            there = found[key]
            if offset and (there is None or there.offset < offset):
                raise SafetyViolation(f"group: {offset} of {key} was committed, {there} is there")
        await consumer.close(CLOSE_SECONDS)
