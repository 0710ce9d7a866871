"""Workload: programs that copy a topic in transactions (some continue as zombies), the feeder, and the final
checks of the copy. PORTED.

A feeder writes the source topic with an idempotent producer. There are two slots, each with a transactional id, two
machines, and one copier process after another. The slots share the source's partitions as a consumer group (KIP-447),
or each slot has one fixed partition. A process closes, crashes, or continues as a zombie on one machine while the
next process starts on the other machine. Some processes are paused, at the end or in the middle of a transaction. A
reader with read_committed follows the sink topic. After the workload has ended, a last process of each slot copies
the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from odradek.client.admin import NewTopic
from odradek.client.consumer.group_calls import Coordinator
from odradek.client.core.partition_offsets import LATEST, list_offsets
from odradek.client.errors import ClientError
from odradek.client.shells.aio import AsyncClient
from odradek.client.shells.aio_producer import AsyncProducer
from odradek.env.ports import Event
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition
from sim.history import SafetyViolation
from sim.load.committed import CommittedReader
from sim.load.copying.copier import GROUP, PARTITIONS, SINK, SOURCE, CopierLife
from sim.load.copying.copy_ledger import CopyLedger, Found, Outcome
from sim.load.copying.copy_plan import CALM, NAP_SECONDS, CopyPlan, is_assigned
from sim.load.workload import END_SECONDS_MAX, REQUEST_SECONDS, Workload
from sim.machine.world import Running
from sim.replicas import StoredBatch, check_replicas_equal, end_of

SLOTS = ("copier-1", "copier-2")
FEEDER = "copy-feeder"
READER = "copy-reader"
ASKER = "copy-asker"
ASK_SECONDS_MAX = 0.3
AWAY_SECONDS_MAX = 1.0
CLOSE_SECONDS = 10.0
FROZEN_SECONDS_MAX = 8.0
COMMITS_SECONDS = 10 * REQUEST_SECONDS
IN_FLIGHT_MAX = 50

__all__ = ["ASKER", "FEEDER", "READER", "Copying", "machines"]


def machines() -> tuple[str, ...]:
    """List the machines of all clients of this workload."""
    return (FEEDER, READER, ASKER, *(_machine(slot, number) for slot in SLOTS for number in range(2)))


def _machine(slot: str, number: int) -> str:
    return f"{slot}-{'ab'[number % 2]}"


class Copying:
    """All clients of the copy workload in one run."""

    def __init__(self, load: Workload, replicas: int) -> None:
        self._load = load
        self._replicas = replicas
        self.ledger = CopyLedger()
        self.lives = self.zombies = self.naps = 0

    def topics(self, configs: Mapping[str, str]) -> list[NewTopic]:
        """Describe both topics; `configs` is the run's configuration for topics."""
        return [NewTopic(name, PARTITIONS, self._replicas, dict(configs)) for name in (SOURCE, SINK)]

    def start_workers(self) -> list[Event]:
        """Start the feeder, the reader and the client that asks for offsets. Return an event for each; it is set when
        the task has ended.
        """
        spawn = self._load.world.spawn
        return [spawn(self._feed), spawn(self._follow), spawn(self._ask_for_offsets)]

    def start_copiers(self) -> dict[str, Event]:
        """Start the copiers. Return an event for each slot; it is set when the whole source topic is copied."""
        return {slot: self._load.world.spawn(self._live, slot) for slot in SLOTS}

    # -- the feeder

    async def _feed(self) -> None:
        load = self._load
        env, random = load.world.node_env(FEEDER), Random(f"{load.world.seed}/{FEEDER}")
        servers = ",".join(f"{host}:{port}" for host, port in load.bootstrap)
        producer = AsyncProducer(
            env, load.world.tasks, bootstrap_servers=servers, client_id=FEEDER, enable_idempotence=True
        )
        sent = []
        serial = 0
        while not load.is_over:
            for _ in range(random.choice((1, 2, 10))):
                serial += 1
                try:
                    sent.append(
                        await producer.send(SOURCE, b"%d" % serial, partition=random.randrange(PARTITIONS))
                    )
                except (KafkaError, ClientError) as error:
                    load.world.trace.record(load.world.now, FEEDER, "feed", error)
            while len(sent) > IN_FLIGHT_MAX:
                try:
                    await sent.pop(0).result()
                except (KafkaError, ClientError) as error:
                    load.world.trace.record(load.world.now, FEEDER, "feed", error)
            await load.world.sleep(random.uniform(0.0, 0.4) * load.pace)
        await producer.close()

    # -- copiers

    async def _live(self, slot: str) -> None:
        """Run one copier process after another, alternately on the two machines of the slot."""
        load, ledger = self._load, self.ledger
        world, random = load.world, Random(f"{load.world.seed}/{slot}")
        number = 0
        partition = SLOTS.index(slot) if is_assigned(world.seed) else None
        former: tuple[str, Running, CopierLife] | None = None
        while not load.is_over:
            number += 1
            plan, machine = CopyPlan.draw(random), _machine(slot, number)
            life = CopierLife(load, ledger, f"{slot}.{number}", slot, plan, partition)
            self.lives += 1
            running = world.start_program(machine, life.main)
            await load.wait_for_life(running.ended, plan.life_seconds)
            if former is not None:
                await self._end(*former, random)
                former = None
            if plan.end == "nap" and not running.ended.is_set():
                await self._nap(machine, running, random, plan.life_seconds)
            if plan.end in ("zombie", "freeze") and not running.ended.is_set():
                self.zombies += 1
                former = (machine, running, life)
                if plan.end == "freeze":
                    world.pause(machine)
                    world.spawn(self._thaw, machine, random.uniform(0.5, FROZEN_SECONDS_MAX))
                continue
            life.is_over = plan.end == "close"
            await self._end(machine, running, life, random)
            await world.sleep(random.uniform(0.0, AWAY_SECONDS_MAX))
        if former is not None:
            await self._end(*former, random)
        while not ledger.is_done:
            number += 1
            last = CopierLife(load, ledger, f"{slot}.{number}", slot, CALM, partition)
            running = world.start_program(_machine(slot, number), last.main)
            await running.ended.wait()

    async def _nap(self, machine: str, running: Running, random: Random, life_seconds: float) -> None:
        """Pause a process for longer than its session in the group, so that other members receive its partitions.
        Then resume the process.
        """
        world = self._load.world
        self.naps += 1
        world.pause(machine)
        await world.sleep(random.uniform(*NAP_SECONDS))
        world.resume(machine)
        await world.wait(running.ended, life_seconds)

    async def _thaw(self, machine: str, seconds: float) -> None:
        await self._load.world.sleep(seconds)
        self._load.world.resume(machine)

    async def _end(self, machine: str, running: Running, life: CopierLife, random: Random) -> None:
        """End a process. If it was asked to stop, wait for its end. Kill it if it still runs after that."""
        world = self._load.world
        if life.is_over:
            await world.wait(running.ended, CLOSE_SECONDS)
        if not running.ended.is_set():
            world.resume(machine)
            world.crash(machine, random.choice(("all", "random")))
            await running.ended.wait()

    # -- the reader

    async def _follow(self) -> None:
        """Read and check the sink's committed records until the workload ends. Raises `SafetyViolation`."""
        keys = [TopicPartition(SINK, index) for index in range(PARTITIONS)]
        await CommittedReader(self._load, READER, keys).follow(
            lambda key, found: self.ledger.see(READER, key.partition, _without_keys(found))
        )

    # -- the client that asks for offsets

    async def _ask_for_offsets(self) -> None:
        """Fetch the group's offsets again and again; `sim.checks.groups.told_offsets` checks the answers."""
        load = self._load
        random = Random(f"{load.world.seed}/{ASKER}")
        client = load.client(ASKER)
        coordinator = Coordinator(client.core, GROUP)
        keys = [TopicPartition(SOURCE, index) for index in range(PARTITIONS)]
        while not load.is_over:
            await load.world.sleep(random.uniform(0.0, ASK_SECONDS_MAX) * load.pace)
            try:
                await client.run(coordinator.committed(keys, deadline=client.core.now + REQUEST_SECONDS))
            except (KafkaError, ClientError) as error:
                load.world.trace.record(load.world.now, ASKER, "ask", error)
        client.close()

    # -- the end

    async def find_ends(self, client: AsyncClient) -> None:
        """Record the end offsets of the source topic, after its last record."""
        asked = {TopicPartition(SOURCE, index): LATEST for index in range(PARTITIONS)}
        found = await client.run(list_offsets(client.core, asked, timeout=END_SECONDS_MAX))
        self.ledger.ends = {key.partition: listed.offset for key, listed in found.items()}

    async def check(self, machine: str) -> None:
        """Read both topics and the group's offsets, and compare them with the outcomes that the copiers learned.

        Raises `SafetyViolation`, and `Liveness` if committed records cannot be read in time.
        """
        content = await self._read_all(machine)
        client = self._load.client(machine)
        coordinator = Coordinator(client.core, GROUP)
        keys = [TopicPartition(SOURCE, index) for index in range(PARTITIONS)]
        deadline = client.core.now + COMMITS_SECONDS
        found = await client.run(coordinator.committed(keys, deadline=deadline))
        client.close()
        committed = {key.partition: 0 if each is None else each.offset for key, each in found.items()}
        ends = self.ledger.ends
        assert ends is not None
        if committed != ends:
            raise SafetyViolation(f"the group {GROUP} ends at {committed}, and its source at {ends}")
        self.ledger.check(
            {key.partition: found for key, found in content.items() if key.topic == SINK},
            {key.partition: found for key, found in content.items() if key.topic == SOURCE},
            committed,
        )

    async def _read_all(self, machine: str) -> dict[TopicPartition, list[Found]]:
        """Read all committed records of both topics, by partition."""
        keys = [TopicPartition(topic, index) for topic in (SOURCE, SINK) for index in range(PARTITIONS)]
        content: dict[TopicPartition, list[Found]] = {key: [] for key in keys}
        await CommittedReader(self._load, machine, keys).read_all(
            lambda key, found: content[key].extend(_without_keys(found))
        )
        return content

    def check_disks(self, logs_of: Callable[[str, int], Mapping[str, list[StoredBatch]]]) -> None:
        """Check that the replicas of both topics are equal on disk. Raises `SafetyViolation`."""
        for topic in (SOURCE, SINK):
            for index in range(PARTITIONS):
                logs = logs_of(topic, index)
                if len(logs) != self._replicas:
                    raise SafetyViolation(
                        f"{topic}-{index}: the replicas are on {', '.join(logs)}, but there must be {self._replicas}"
                    )
                check_replicas_equal(f"{topic}-{index}", logs, max(map(end_of, logs.values())))

    def figures(self) -> dict[str, int]:
        """Count the processes, and the transactions by the outcome that their clients learned."""
        outcomes = [copy.outcome for copy in self.ledger.copies.values()]
        return {
            "copiers": self.lives,
            "zombies": self.zombies,
            "naps": self.naps,
            "transactions committed": outcomes.count(Outcome.COMMITTED),
            "transactions aborted": outcomes.count(Outcome.ABORTED),
            "transactions undecided": len(outcomes)
            - outcomes.count(Outcome.COMMITTED)
            - outcomes.count(Outcome.ABORTED),
        }


def _without_keys(found: Sequence[tuple[int, bytes, bytes]]) -> list[Found]:
    return [(offset, value) for offset, _, value in found]
