"""A scenario with one node that crashes again and again, and clients that record all answers. PORTED.

The seed draws the weather, the workload, the crashes and lesser trouble. A crash is a clean stop, a killed process or
a power loss. It may happen in the middle of a disk operation, or after a disk error. Lesser trouble is a full disk, a
paused process, a cut link, or a clock that is set wrong. At the end the node is started once more, all records are
read, and `sim.history` compares them with the answers to clients.

The fault model permits this: a node whose disk reports errors or is full may stop, but only with an error about its
disk. After a disk error the machine always loses power. A kernel that has failed to write pages may drop them, and
no later sync reports that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from odradek.client.admin import NewTopic
from odradek.metadata_quorum.replica.storage_format import StorageFormat, format_storage
from odradek.node.configuration.node_config import NodeConfig
from sim.history import History, SafetyViolation
from sim.load.churning import Churning
from sim.load.workload import REQUEST_SECONDS, Workload
from sim.machine.cluster_members import Shape
from sim.machine.members import Member
from sim.machine.weather import Weather
from sim.machine.world import World

NODE = "node-1"
PORT = 9092
DATA = ("/data", "/more")
"""Paths of the log directories. With an even seed the node has only the first directory."""
CLUSTER_ID = "H5nlA7uKR0-zDRxvMJS5iw"
SYNCED, CACHED = "synced", "cached"
PARTITIONS = 2
DEATHS = ("stop", "all", "all", "synced", "random", "cut", "error")
VIRTUAL_SECONDS_MAX = 1800.0
CLOCK_OFF_MS_MAX = 1_800_000
"""The largest error of a clock in milliseconds. It is below one hour, because Kafka accepts timestamps of producers up
to one hour ahead of the broker's clock.
"""

__all__ = ["SafetyViolation", "Scenario", "node_config"]


def node_config(**more: str) -> NodeConfig:
    """Return the configuration of a node that is broker and controller on the machine `node-1`. `more` has further
    keys, with `_` for `.`.
    """
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
        StorageFormat(
            cluster_id=CLUSTER_ID,
            node_id=config.node_id,
            directory_ids=[env.new_uuid() for _ in directories],
            voter=config.voter,
            timestamp_ms=env.clock.wall_ms(),
        ),
    )


class Scenario:
    """One run with a single node."""

    def __init__(
        self,
        seed: int,
        *,
        crashes: int = 3,
        clients: int = 2,
        churners: int | None = None,
        shape: Shape | None = None,
        deaths: Sequence[str] = DEATHS,
        weather: Weather | None = None,
    ) -> None:
        """Create the scenario. Values that are not given are drawn from the seed.

        `churners` is the number of clients that create and delete topics (`sim.load.churning`). The scenario uses only
        the settings of `shape`.
        """
        self.world = World(seed, weather)
        self.history = History((SYNCED,))
        topics = {SYNCED: PARTITIONS, CACHED: PARTITIONS}
        self.load = Workload(self.world, self.history, topics, [(NODE, PORT)])
        shape = Shape(nodes=1).with_upkeep(Random(f"{seed}/upkeep")) if shape is None else shape
        self.config = node_config(log_dirs=",".join(DATA[: 1 + seed % 2]), **shape.settings)
        self._topic_configs = shape.topic_configs
        drawn = Random(f"{seed}/churners").choice((0, 2))
        self._churners = drawn if churners is None else churners
        self._crashes = crashes
        self._deaths = deaths
        self._clients = clients
        self._random = Random(f"{seed}/scenario")
        self._member = Member(self.world, NODE, self.config)

    def run(self) -> Mapping[str, int]:
        """Run to the end, and return counts of the run's events, each with a name. Raises `SafetyViolation`,
        `Liveness`, and the errors of the node.
        """
        return self.world.run(self._main, virtual_seconds_max=VIRTUAL_SECONDS_MAX)

    async def _main(self) -> Mapping[str, int]:
        world = self.world
        format_node(world, self.config)
        world.crash(NODE, "random")  # The format must have synced all files that it wrote.
        await self._member.start()
        load = self.load
        admin = load.client("admin")
        wanted = [
            NewTopic(SYNCED, PARTITIONS, 1, {"flush.messages": "1", **self._topic_configs}),
            NewTopic(CACHED, PARTITIONS, 1, self._topic_configs),
        ]
        await load.create_topics(admin, wanted, timeout=REQUEST_SECONDS)
        workers = load.start([f"client-{number}" for number in range(self._clients)], (), ("reader",))
        churning = [Churning(load, f"churner-{number}", 1) for number in range(self._churners)]
        workers += [world.spawn(churner.run) for churner in churning]
        await self._storm()
        load.is_over = True
        for churner in churning:
            churner.is_over = True
        for worker in workers:
            await worker.wait()
        summary = await load.check(admin)
        admin.close()
        return {
            **summary,
            "starts": world.machine(NODE).starts,
            "power_losses": len(self.history.power_losses),
        }

    # --- the node and its crashes

    async def _storm(self) -> None:
        world, random = self.world, self._random
        for _ in range(self._crashes):
            await world.sleep(random.uniform(0.0, 3.0))
            while random.random() < 0.4:
                await self._vex(random.choice(("full", "pause", "partition", "clock")))
            await self._kill(random.choice(self._deaths))
            while random.random() < 0.3:  # Sometimes crash again before the node is up.
                self._member.launch()
                await world.sleep(random.uniform(0.0, 0.2))
                await self._kill(random.choice(("all", "synced", "random")))
            await world.sleep(random.uniform(0.0, 1.0))
            await self._member.start()
        await world.sleep(random.uniform(0.0, 3.0))

    async def _kill(self, how: str) -> None:
        member = self._member
        if not member.is_up():
            return
        if how == "stop":
            member.ask_to_stop()
        elif how == "cut":
            await member.cut(self._random)
        elif how == "error":
            await member.fail_the_disk(self._random)
        elif how == "all":
            self.world.crash(NODE, "all")
        else:
            self.world.crash(NODE, "synced" if how == "synced" else "random")
        if how not in ("stop", "all"):
            self.history.power_losses.append(self.world.now)
        running = member.running
        assert running is not None
        await running.ended.wait()

    async def _vex(self, how: str) -> None:
        """Cause one kind of lesser trouble for a while. The node must survive it, or stop with an error about its
        disk.
        """
        random, world = self._random, self.world
        machine = world.machine(NODE)
        seconds = random.choice(
            (random.uniform(0.0, 0.1), random.uniform(0.0, 3.0), random.uniform(0.0, 30.0))
        )
        peer = random.choice([f"client-{number}" for number in range(self._clients)])
        if not self._member.is_up():
            return
        if how == "full":
            self._member.disk_is_bad = True
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
        if self._member.log.directory_is_offline:
            # The node runs on with its other directory. Kill it, since only a restart brings the offline directory
            # back.
            await self._kill("all")
        if self._member.disk_is_bad and not self._member.is_up():
            await self._member.start()
        self._member.disk_is_bad = False
