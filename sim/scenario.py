"""One node that dies again and again, and clients that remember what they were told. PORTED.

The seed draws the weather, the load, the deaths (clean stops, killed processes, losses of power, power that fails in
the middle of a disk operation, a disk that reports errors) and lesser trouble (a full disk, a frozen process, a cut
link, a clock that is set). In the end the node is started once more, everything is read back, and `sim.history`
holds it against what clients were told.

What the fault model permits: a node whose disk reports errors or is full may stop, but never by an exception that
says something else. After a disk error the machine always loses power, because a kernel that has failed to write
pages out may forget them later, and no later sync would tell.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from random import Random

from metadata_quorum.storage_format import format_storage
from odradek.client.admin import NewTopic, create_topics
from odradek.client.aio import AsyncClient
from odradek.client.config import ClientConfig
from odradek.client.errors import ClientError
from odradek.client.offsets import EARLIEST, LATEST, list_offsets
from odradek.env.ports import DiskError, Env, Event
from odradek.node.config import NodeConfig
from odradek.node.node import NodeFailed
from odradek.node.run_node import run_node
from sim.fetching import FetchConfig, Fetcher
from sim.history import History, SafetyViolation, Told
from sim.producing import ProduceConfig, Producing, RecordToSend
from sim.weather import Weather
from sim.world import Running, World
from wire.errors import KafkaError

NODE = "node-1"
PORT = 9092
DATA = ("/data", "/more")
"""Log directories, of which every other seed has the first one alone."""
CLUSTER_ID = "H5nlA7uKR0-zDRxvMJS5iw"
SYNCED, CACHED = "synced", "cached"
PARTITIONS = 2
VIRTUAL_SECONDS_MAX = 1800.0
REQUEST_SECONDS = 20.0
FETCH_BYTES_MAX = 1 << 18
"""As much as the slowest line of the weather carries well within `REQUEST_SECONDS`."""
CLOCK_OFF_MS_MAX = 1_800_000
"""Within what Kafka takes of a producer's timestamps ahead of the broker's clock: an hour."""
CUT_SECONDS_MAX = 30.0
"""How long to wait for the disk operation in which the power fails."""

__all__ = ["SafetyViolation", "Scenario", "node_config"]


def node_config(**more: str) -> NodeConfig:
    """A node that is broker and controller on the machine `node-1`; `more` keys with `_` for `.`."""
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"PLAINTEXT://{NODE}:{PORT},CONTROLLER://{NODE}:9093",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@{NODE}:9093",
        "log.dirs": DATA[0],
    }
    return NodeConfig.from_properties(
        properties | {key.replace("_", "."): text for key, text in more.items()}
    )


def format_node(world: World, config: NodeConfig) -> None:
    """Format the node's disk, as an operator does before the first start."""
    env = world.node_env(NODE)
    directories = [env.open_dir(path, create=True) for path in config.log_dirs]
    format_storage(
        directories,
        directories[0],
        cluster_id=CLUSTER_ID,
        node_id=config.node_id,
        directory_ids=[env.new_uuid() for _ in directories],
        voter=config.voter,
        timestamp_ms=env.clock.wall_ms(),
    )


class TraceLog:
    """The node's log, as events of the trace."""

    def __init__(self, world: World, who: str) -> None:
        self._world = world
        self._who = who
        self.directory_is_offline = False

    def _note(self, event: str, **fields: object) -> None:
        self.directory_is_offline |= event == "directory.offline"
        self._world.trace.record(self._world.now, self._who, "log", event, sorted(fields.items()))

    debug = info = warning = error = _note
    exception = _note


class Scenario:
    """One run. See the module docstring."""

    def __init__(
        self, seed: int, *, crashes: int = 3, clients: int = 2, weather: Weather | None = None
    ) -> None:
        self.world = World(seed, weather)
        self.history = History((SYNCED,))
        self.config = node_config(log_dirs=",".join(DATA[: 1 + seed % 2]))
        self._crashes = crashes
        self._clients = clients
        self._random = Random(f"{seed}/scenario")
        self._storm_is_over = False
        self._disk_is_bad = False
        self._log = TraceLog(self.world, NODE)
        self._stop: Event | None = None
        self._started: Event | None = None

    def run(self) -> Mapping[str, int]:
        """Run to the end. Raises `SafetyViolation`, `Liveness`, and whatever makes the node fail."""
        return self.world.run(self._main, virtual_seconds_max=VIRTUAL_SECONDS_MAX)

    async def _main(self) -> Mapping[str, int]:
        world = self.world
        format_node(world, self.config)
        world.crash(NODE, "random")  # what the format has written must be durable
        await self._start()
        admin = self._client("admin")
        await self._create_topics(admin)
        workers = [world.spawn(self._produce, f"client-{number}") for number in range(self._clients)]
        workers.append(world.spawn(self._consume, "reader"))
        await self._storm()
        self._storm_is_over = True
        for worker in workers:
            await worker.wait()
        return await self._check(admin)

    def _client(self, name: str) -> AsyncClient:
        config = ClientConfig(client_id=name, request_timeout=REQUEST_SECONDS, fail_fast=False)
        return AsyncClient(self.world.node_env(name), self.world.tasks, [(NODE, PORT)], config)

    async def _create_topics(self, client: AsyncClient) -> None:
        wanted = [
            NewTopic(SYNCED, PARTITIONS, 1, {"flush.messages": "1"}),
            NewTopic(CACHED, PARTITIONS, 1),
        ]
        for topic in await client.run(create_topics(client.core, wanted, timeout=REQUEST_SECONDS)):
            if topic.error is not None:
                raise topic.error

    # --- the node and its deaths

    async def _start(self) -> None:
        """Start the node; returns once it serves clients, or is gone again."""
        serving = self._started = self.world.event()
        running = self.world.start(NODE, self._serve)
        running.on_end = serving.set
        await serving.wait()

    async def _serve(self, env: Env) -> None:
        stop = self._stop = env.event()
        serving = self._started
        assert serving is not None
        log = self._log = TraceLog(self.world, NODE)
        try:
            await run_node(self.config, env, started=lambda _: serving.set(), stop=stop, log=log, poison=True)
        except* (NodeFailed, DiskError) as group:
            if not self._disk_is_bad:
                raise
            log.error("process.failed", reason=str(_first(group)))

    async def _storm(self) -> None:
        world, random = self.world, self._random
        for _ in range(self._crashes):
            await world.sleep(random.uniform(0.0, 3.0))
            while random.random() < 0.4:
                await self._vex(random.choice(("full", "pause", "partition", "clock")))
            await self._kill(random.choice(("stop", "all", "all", "synced", "random", "cut", "error")))
            while random.random() < 0.3:  # die again before it is up
                running = world.start(NODE, self._serve)
                await world.sleep(random.uniform(0.0, 0.2))
                if not running.ended.is_set():
                    await self._kill(random.choice(("all", "synced", "random")))
            await world.sleep(random.uniform(0.0, 1.0))
            await self._start()
        await world.sleep(random.uniform(0.0, 3.0))

    async def _kill(self, how: str) -> None:
        world, history = self.world, self.history
        machine = world.machine(NODE)
        running = machine.running
        assert running is not None
        if running.ended.is_set():
            return
        if how == "stop":
            assert self._stop is not None
            self._stop.set()
        elif how == "cut":
            machine.disk.crash_at(machine.disk.operation_count + self._random.randint(1, 300))
            await world.wait(running.ended, CUT_SECONDS_MAX)
            if not running.ended.is_set():
                world.crash(NODE, "random")
        elif how == "error":
            await self._fail_the_disk(running)
        elif how == "all":
            world.crash(NODE, "all")
        else:
            world.crash(NODE, "synced" if how == "synced" else "random")
            history.power_losses.append(world.now)
        await running.ended.wait()
        if how == "cut":
            history.power_losses.append(world.now)

    async def _fail_the_disk(self, running: Running) -> None:
        """Let some operations fail; the node stops by itself or goes on, and then the power is gone."""
        random, world = self._random, self.world
        disk = world.machine(NODE).disk
        self._disk_is_bad = True
        for _ in range(random.choice((1, 1, 3))):
            disk.fail_at(disk.operation_count + random.randint(1, 200), errno.EIO)
        await world.sleep(random.uniform(0.0, 5.0))
        world.machine(NODE).disk.forget_faults()
        world.node_env(NODE)  # a process that has failed leaves a machine that is up
        world.crash(NODE, random.choice(("synced", "random")))
        self.history.power_losses.append(world.now)
        await running.ended.wait()
        self._disk_is_bad = False

    async def _vex(self, how: str) -> None:
        """Trouble that a node lives through, or at least stops for with the right words."""
        random, world = self._random, self.world
        machine = world.machine(NODE)
        seconds = random.choice(
            (random.uniform(0.0, 0.1), random.uniform(0.0, 3.0), random.uniform(0.0, 30.0))
        )
        peer = random.choice([f"client-{number}" for number in range(self._clients)])
        if machine.running is None or machine.running.ended.is_set():
            return
        if how == "full":
            self._disk_is_bad = True
            machine.disk.capacity_bytes = machine.disk.used_bytes + random.randint(0, 5000)
        elif how == "pause":
            world.pause(NODE)
        elif how == "partition":
            for source, target in random.choice(
                (((NODE, peer), (peer, NODE)), ((NODE, peer),), ((peer, NODE),))
            ):
                world.fabric.cut(source, target)
        else:
            world.node_env(NODE).clock.wall_offset_ms = random.randint(-CLOCK_OFF_MS_MAX, CLOCK_OFF_MS_MAX)
        await world.sleep(seconds)
        world.resume(NODE)
        world.heal(NODE, peer)
        machine.disk.capacity_bytes = None
        if self._log.directory_is_offline and not machine.running.ended.is_set():
            # Only a new start brings the directory back; the node has gone on with the other one.
            await self._kill("all")
        if self._disk_is_bad and machine.running.ended.is_set():
            await self._start()
        self._disk_is_bad = False

    # --- clients

    async def _produce(self, name: str) -> None:
        client = self._client(name)
        clock = self.world.node_env(name).clock
        random = Random(f"{self.world.seed}/{name}")
        producing = Producing(client.core, ProduceConfig(batch_bytes_max=random.choice((300, 4096, 1 << 18))))
        serial = 0
        while not self._storm_is_over:
            records = []
            for _ in range(random.choice((1, 1, 5, 40))):
                topic, partition = random.choice((SYNCED, CACHED)), random.randrange(PARTITIONS)
                value = b"%s:%d:" % (name.encode(), serial) + random.randbytes(
                    random.choice((0, 10, 300, 3000))
                )
                serial += 1
                self.history.send((topic, partition), value)
                records.append(RecordToSend(topic, value, partition=partition, timestamp_ms=clock.wall_ms()))
            began = self.world.now  # a batch may be acknowledged long before the whole call returns
            try:
                deliveries = await client.run(producing.produce(records, timeout=60.0))
            except (KafkaError, ClientError):
                self.history.failed_sends += len(records)
                continue
            for delivery in deliveries:
                if delivery.error is not None:
                    self.history.failed_sends += len(delivery.indexes)
                    continue
                for offset, index in enumerate(delivery.indexes, delivery.base_offset):
                    value = records[index].value or b""
                    partition_key = (delivery.topic, delivery.partition)
                    self.history.acknowledged.append(Told(partition_key, offset, value, began))
            await clock.sleep_until(clock.monotonic() + random.uniform(0.0, 0.2))
        client.close()

    async def _consume(self, name: str) -> None:
        client = self._client(name)
        fetcher = Fetcher(
            client.core, FetchConfig(reset_to=EARLIEST, unavailable_timeout=300.0, max_bytes=FETCH_BYTES_MAX)
        )
        for topic in (SYNCED, CACHED):
            for partition in range(PARTITIONS):
                fetcher.assign(topic, partition, 0)
        while not self._storm_is_over:
            began = (
                self.world.now
            )  # an answer may have been on its way for long; none is left over between polls
            for fetched in await client.run(fetcher.poll(timeout=10 * REQUEST_SECONDS)):
                key = (fetched.topic, fetched.partition)
                for record in fetched.records():
                    self.history.read.append(Told(key, record.offset, record.value or b"", began))
        client.close()

    # --- the end

    async def _check(self, client: AsyncClient) -> Mapping[str, int]:
        partitions = [(topic, index) for topic in (SYNCED, CACHED) for index in range(PARTITIONS)]
        starts = await client.run(
            list_offsets(client.core, dict.fromkeys(partitions, EARLIEST), timeout=REQUEST_SECONDS)
        )
        ends = await client.run(
            list_offsets(client.core, dict.fromkeys(partitions, LATEST), timeout=REQUEST_SECONDS)
        )
        fetcher = Fetcher(client.core, FetchConfig(max_bytes=FETCH_BYTES_MAX))
        content: dict[tuple[str, int], list[tuple[int, bytes]]] = {key: [] for key in partitions}
        for key in partitions:
            fetcher.assign(*key, starts[key].offset)
        while any(fetcher.positions[key] < ends[key].offset for key in partitions):
            for fetched in await client.run(fetcher.poll(timeout=1.0)):
                records = content[fetched.topic, fetched.partition]
                records += [(record.offset, record.value or b"") for record in fetched.records()]
        found = sum(self.history.check(key, starts[key].offset, content[key]) for key in partitions)
        client.close()
        return {
            "records": found,
            "sent": sum(map(len, self.history.sent.values())),
            "acknowledged": len(self.history.acknowledged),
            "read": len(self.history.read),
            "failed": self.history.failed_sends,
            "starts": self.world.machine(NODE).starts,
            "power_losses": len(self.history.power_losses),
        }


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
