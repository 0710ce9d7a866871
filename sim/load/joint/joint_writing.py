"""Workload of joint transactions: writers, a client that commits and fetches the group's offsets, a reader, and the
final checks. PORTED.

Each slot has a transactional id, two machines, and one writer process after another. A process closes, crashes, or
continues as a zombie while the next process starts. The clerk is a client that commits offsets of the same group
outside any transaction, and fetches the group's offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from odradek.client.admin import NewTopic
from odradek.client.consumer.consumer_types import OffsetAndMetadata
from odradek.client.consumer.group_calls import Coordinator, Member
from odradek.client.errors import ClientError
from odradek.client.shells.aio import AsyncClient
from odradek.env.ports import Event
from odradek.wire.batches.records import records
from odradek.wire.errors import KafkaError
from odradek.wire.messages.offset_commit import OffsetCommitRequest
from odradek.wire.topic_partition import TopicPartition
from sim.history import SafetyViolation
from sim.load.committed import CommittedReader
from sim.load.joint.joint_ledger import Found, JointLedger
from sim.load.joint.joint_plan import CALM, JointPlan, LifePlan
from sim.load.joint.joint_writer import JointWriter, SendCounter
from sim.load.workload import REQUEST_SECONDS, Workload
from sim.machine.world import Running
from sim.replicas import StoredBatch, check_replicas_equal, end_of

AWAY_SECONDS_MAX = 1.0
CLOSE_SECONDS = 10.0
ASK_SECONDS_MAX = 0.6
COMMITS_SECONDS = 10 * REQUEST_SECONDS
DECOMPRESSED_BYTES_MAX = 1 << 20
LAST_TURNS = 2
"""The number of transactions of each slot's last process."""

TWO_PHASE = "transaction.two.phase.commit.enable"
OFFSETS_RETENTION, OFFSETS_STAY = "offsets.retention.minutes", "10080"
"""The configuration key for the retention of offsets, and Kafka's default in minutes, which is longer than any run."""

__all__ = ["JointWriting"]


class JointWriting:
    """All clients of one joint workload."""

    def __init__(self, load: Workload, workload: str, replicas: int, settings: Mapping[str, str]) -> None:
        self._load = load
        self._replicas = replicas
        two_phase = settings.get(TWO_PHASE) == "true"
        self.plan = JointPlan.draw(load.world.seed, workload, two_phase=two_phase)
        offsets_may_expire = settings.get(OFFSETS_RETENTION, OFFSETS_STAY) != OFFSETS_STAY
        self.ledger = JointLedger(workload, self.plan.is_compacted, offsets_may_expire)
        self.lives = self.zombies = 0

    @property
    def _keys(self) -> list[TopicPartition]:
        return [TopicPartition(self.plan.topic, index) for index in range(self.plan.partitions)]

    @property
    def _reader(self) -> str:
        return f"{self.plan.workload}-reader"

    @property
    def _clerk(self) -> str:
        return f"{self.plan.workload}-clerk"

    def machines(self) -> tuple[str, ...]:
        """List the machines of all clients of this workload."""
        writers = (_machine(slot, number) for slot in self.plan.slots for number in range(2))
        return (self._reader, self._clerk, *writers)

    def topic(self, configs: Mapping[str, str]) -> NewTopic:
        """Describe the topic. Its configuration is `configs`, which all topics of the run have, with the workload's
        own keys.
        """
        plan = self.plan
        return NewTopic(plan.topic, plan.partitions, self._replicas, {**configs, **plan.configs})

    def start_workers(self) -> list[Event]:
        """Start the reader and the clerk. Return an event for each; it is set when the task has ended."""
        found = [self._load.world.spawn(self._follow)]
        if self.plan.commits_offsets:
            found.append(self._load.world.spawn(self._keep_offsets))
        return found

    def start_writers(self) -> dict[str, Event]:
        """Start the writers. Return an event for each slot; it is set when the slot's last process has ended."""
        return {slot: self._load.world.spawn(self._live, slot) for slot in self.plan.slots}

    # -- writers

    async def _live(self, slot: str) -> None:
        """Run one writer process after another, alternately on the two machines of the slot."""
        load = self._load
        world, random = load.world, Random(f"{load.world.seed}/{slot}")
        number = 0
        former: tuple[str, Running, JointWriter] | None = None
        writer: JointWriter | None = None
        while not load.is_over:
            number += 1
            life = LifePlan.draw(random, is_two_phase=self.plan.is_two_phase)
            writer, machine = self._writer(slot, number, life, writer), _machine(slot, number)
            running = world.start_program(machine, writer.main)
            await load.wait_for_life(running.ended, life.life_seconds)
            if former is not None:
                await self._end(*former, random)
                former = None
            if life.end == "zombie" and not running.ended.is_set():
                self.zombies += 1
                former = (machine, running, writer)
                continue
            writer.is_over = life.end == "close"
            await self._end(machine, running, writer, random)
            await world.sleep(random.uniform(0.0, AWAY_SECONDS_MAX))
        if former is not None:
            await self._end(*former, random)
        while writer is None or writer.turns < LAST_TURNS or writer.turns_max is None:
            number += 1
            writer = self._writer(slot, number, CALM, writer)
            writer.turns_max = LAST_TURNS
            await world.start_program(_machine(slot, number), writer.main).ended.wait()

    def _writer(self, slot: str, number: int, life: LifePlan, before: JointWriter | None) -> JointWriter:
        writer = JointWriter(self._load, self.ledger, self.plan, slot, number, life)
        if before is not None:
            writer.former = before.last or before.former
        self.lives += 1
        return writer

    async def _end(self, machine: str, running: Running, writer: JointWriter, random: Random) -> None:
        """End a process. If it was asked to stop, wait for its end. Kill it if it still runs after that."""
        world = self._load.world
        if writer.is_over:
            await world.wait(running.ended, CLOSE_SECONDS)
        if not running.ended.is_set():
            world.crash(machine, random.choice(("all", "random")))
            await running.ended.wait()

    # -- the reader

    async def _follow(self) -> None:
        """Read and check the committed records until the workload ends."""
        await CommittedReader(self._load, self._reader, self._keys).follow(self._see)

    def _see(self, key: TopicPartition, found: list[tuple[int, bytes, bytes]]) -> None:
        try:
            self.ledger.see(self._reader, key.partition, [Found(*each) for each in found])
        except SafetyViolation as error:
            self._load.world.refute(error)

    # -- the clerk

    async def _keep_offsets(self) -> None:
        """Commit offsets outside any transaction, and fetch and check the group's offsets, until the workload ends."""
        load, ledger, name = self._load, self.ledger, self._clerk
        random, client = Random(f"{load.world.seed}/{name}"), load.client(name)
        sends = SendCounter(client.core, OffsetCommitRequest)
        coordinator = Coordinator(client.core, self.plan.group)
        while not load.is_over:
            await load.world.sleep(random.uniform(0.0, ASK_SECONDS_MAX) * load.pace)
            try:
                if random.random() < 0.4:
                    asked = ledger.ask([random.randrange(self.plan.partitions)], None)
                    before = sends.times
                    offsets = {self._keys[each.partition]: OffsetAndMetadata(each.offset) for each in asked}
                    deadline = client.core.now + REQUEST_SECONDS
                    await client.run(coordinator.commit(offsets, Member(), deadline=deadline, topic_ids={}))
                    ledger.answer(asked, times=sends.times - before)
                else:
                    await self._ask(client, coordinator, REQUEST_SECONDS, name)
            except (KafkaError, ClientError) as error:
                load.world.trace.record(load.world.now, name, "clerk", error)
            except SafetyViolation as error:
                load.world.refute(error)
        client.close()

    async def _ask(self, client: AsyncClient, coordinator: Coordinator, seconds: float, who: str) -> None:
        """Fetch the group's offsets, and check them. Raises `SafetyViolation`."""
        asked = self.ledger.tick()
        found = await client.run(coordinator.committed(self._keys, deadline=client.core.now + seconds))
        for key, each in found.items():
            self.ledger.check_offset(key.partition, None if each is None else each.offset, asked, who)

    # -- the end

    async def check(self, machine: str) -> None:
        """Read all committed records and the group's offsets, and check them. Raises `SafetyViolation`."""
        content: dict[int, list[Found]] = {key.partition: [] for key in self._keys}
        await CommittedReader(self._load, machine, self._keys).read_all(
            lambda key, found: content[key.partition].extend(Found(*each) for each in found)
        )
        self.ledger.check(content)
        if self.plan.commits_offsets:
            client = self._load.client(machine)
            await self._ask(client, Coordinator(client.core, self.plan.group), COMMITS_SECONDS, machine)
            client.close()

    def check_disks(self, logs_of: Callable[[str, int], Mapping[str, list[StoredBatch]]]) -> None:
        """Check that replicas are equal on disk or, if they are compacted, have the newest record of each key. Raises
        `SafetyViolation`.
        """
        for key in self._keys:
            logs = logs_of(*key)
            if len(logs) != self._replicas:
                raise SafetyViolation(
                    f"{key}: the replicas are on {', '.join(logs)}, but there must be {self._replicas}"
                )
            if not self.plan.is_compacted:
                check_replicas_equal(f"{key}", logs, max(map(end_of, logs.values())))
                continue
            for name, log in logs.items():
                self.ledger.check_replica(f"{key} on {name}", key.partition, _stored(log))

    def figures(self) -> dict[str, int]:
        """Count the processes, the transactions by outcome, and the commits of offsets."""
        name = self.plan.workload
        return {f"{name} lives": self.lives, f"{name} zombies": self.zombies, **self.ledger.figures()}


def _machine(slot: str, number: int) -> str:
    return f"{slot}-{'ab'[number % 2]}"


def _stored(log: Sequence[StoredBatch]) -> list[Found]:
    """Decode all records of a log, including markers."""
    return [
        Found(record.offset, record.key or b"", record.value or b"")
        for batch in log
        for record in records(batch.data, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    ]
