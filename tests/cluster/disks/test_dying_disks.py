"""Disks die one after another under a running node of three. An idempotent acks=all producer writes to all of them.

Either the leaders or the followers on a disk notice its death first. The node keeps running, its other disks serve, the
controller marks the directory offline, and leaders move. In the end every acknowledged record is there. `make test`
uses two XFS and two ext4 disks; `make test-disks` uses more.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import attrs
import pytest

from odradek import Client
from odradek.cli.commands.storage import format_storage_of
from odradek.client.admin.admin_topics import NewTopic
from testkit.odradek_server import spawn_node
from testkit.processes import ServerProcess, free_ports, wait_until_serving
from tests.cluster.disks.real_disks import RealDisk, real_disk
from tests.cluster.test_real_nodes import until
from tests.deploy.load import TOPIC, Load

pytestmark = pytest.mark.xdist_group("cluster")

CLUSTER_ID = "H5nlA7uKR0-zDRxvMJS5iw"
NODES = (1, 2, 3)
ROUNDS = 6 if "ODRADEK_TEST_DISKS" in os.environ else 1
MORTAL = ("xfs", "ext4") * 2
SIZE_MIB = 320
"""Size of each disk in MiB. It is the same for all, so that each gets partitions."""


@attrs.define
class AimedLoad(Load):
    """A load that can be aimed at some of the partitions."""

    aim: list[int] = attrs.field(factory=lambda: list(range(12)))

    def start(self) -> None:
        """Create the topic, with node 1 leading every second partition. So each of its disks has leaders and followers."""
        orders = ([1, 2, 3], [2, 3, 1], [1, 3, 2], [3, 1, 2])
        assignments = {index: orders[index % len(orders)] for index in self.aim}
        with Client(self.bootstrap) as client:
            (created,) = client.admin.create_topics([NewTopic(TOPIC, assignments=assignments)])
        assert created.error is None, created.error
        self._set_to_work()

    def place(self) -> int:
        return self.aim[self.attempted % len(self.aim)]

    def aim_at(self, partitions: list[int]) -> None:
        """Write only to these partitions from now on; return once a record written after the change is acknowledged."""
        self.aim = partitions
        # Count only records sent from now on: earlier ones may be acknowledged meanwhile.
        assert self.acknowledged_since(time.monotonic()), (
            f"no record was acknowledged in partitions {partitions}"
        )


class Trio:
    """Three combined nodes. The first one has many disks, each a separate file system."""

    def __init__(self, folder: Path, disks: dict[str, RealDisk]) -> None:
        self.disks = disks
        ports = free_ports(6)
        clients, controllers = ports[:3], ports[3:]
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in zip(NODES, controllers, strict=True))
        self.paths = {}
        for node, port, controller in zip(NODES, clients, controllers, strict=True):
            own = (
                [str(disk.path / "data") for disk in disks.values()]
                if node == 1
                else [str(folder / f"{node}")]
            )
            settings = {
                "process.roles": "broker,controller",
                "node.id": str(node),
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "controller.listener.names": "CONTROLLER",
                "log.dirs": ",".join(own),
                "metadata.log.dir": str(folder / f"metadata-{node}"),
                "min.insync.replicas": "2",
                "offsets.topic.replication.factor": "3",
                "offsets.topic.num.partitions": "3",
                "group.initial.rebalance.delay.ms": "0",
                "odradek.log.dir.reserve.bytes": str(8 << 20),
            }
            path = self.paths[node] = folder / f"node-{node}" / "server.properties"
            path.parent.mkdir()
            path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            format_storage_of(str(path), cluster_id=CLUSTER_ID, ignore_formatted=False)
        self.servers: dict[int, ServerProcess] = {}
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in clients)

    @property
    def log(self) -> str:
        """The log file of node 1, which has the disks."""
        return self.paths[1].with_name("server.log").read_text()

    def open_on(self, name: str) -> set[str]:
        """Return the names of the files that node 1 has open on a disk."""
        root, descriptors = str(self.disks[name].path), f"/proc/{self.servers[1].process.pid}/fd"
        found = set()
        for number in os.listdir(descriptors):
            with suppress(FileNotFoundError):  # closed meanwhile
                link = os.readlink(f"{descriptors}/{number}")
                if link.startswith(f"{root}/"):
                    found.add(os.path.basename(link))
        return found

    def places(self) -> dict[str, list[int]]:
        """Return the load's partitions on each disk. A future replica does not count: its directory has a longer name."""
        names = re.compile(rf"{re.escape(TOPIC)}-(\d+)")
        return {
            name: sorted(
                int(found[1])
                for path in (disk.path / "data").iterdir()
                if (found := names.fullmatch(path.name))
            )
            for name, disk in self.disks.items()
        }

    def deal_out(self, partitions: list[int]) -> dict[str, list[int]]:
        """Move node 1's replicas so that each disk has two adjacent partitions; return the partitions of each disk.

        Node 1 leads the even partition of each pair. Without this step it would place replicas by the free room that it
        measures, which differs a little between disks.
        """
        names = list(self.disks)
        wanted = {
            name: [index for index in partitions if index // 2 % len(names) == n]
            for n, name in enumerate(names)
        }
        paths = {
            (TOPIC, index, 1): str(self.disks[name].path / "data") for name in names for index in wanted[name]
        }
        with Client(self.bootstrap) as client:
            outcomes = client.admin.alter_replica_log_dirs(paths)
        assert set(outcomes.values()) == {None}, outcomes
        until(
            "each replica on its disk",
            lambda: (self.places() == wanted and self.is_in_sync(partitions)) or None,
        )
        return wanted

    def leaders(self) -> dict[int, int]:
        """Return the leader of each partition."""
        with Client(self.bootstrap) as client:
            (topic,) = client.admin.describe_topics([TOPIC])
        return {index: each.leader for index, each in topic.partitions.items()}

    def has_left(self, partitions: list[int]) -> bool | None:
        """True if the controller has marked the replicas of node 1 as offline and other nodes lead; else None."""
        with Client(self.bootstrap) as client:
            (topic,) = client.admin.describe_topics([TOPIC])
        found = [topic.partitions[index] for index in partitions]
        return (
            all(1 in each.offline_replicas and 1 not in each.isr and each.leader != 1 for each in found)
            or None
        )

    def is_in_sync(self, partitions: list[int]) -> bool | None:
        with Client(self.bootstrap) as client:
            (topic,) = client.admin.describe_topics([TOPIC])
        return all(1 in topic.partitions[index].isr for index in partitions) or None

    def start(self, *nodes: int) -> None:
        """Start nodes together, because a quorum needs two of them."""
        for node in nodes:
            path = self.paths[node]
            self.servers[node] = spawn_node(
                f"node {node}",
                path,
                bootstrap=self.bootstrap.split(",")[node - 1],
                log_path=path.with_name("server.log"),
            )
        for node in nodes:
            wait_until_serving(self.servers[node])

    def end(self) -> None:
        for server in self.servers.values():
            server.kill()


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    with ExitStack() as stack:
        kinds = ["ext4", *MORTAL]
        disks = [
            stack.enter_context(real_disk(tmp_path / f"disk-{number}", kind, SIZE_MIB))
            for number, kind in enumerate(kinds)
        ]
        names = ["sound", *(f"{kind}-{number}" for number, kind in enumerate(MORTAL))]
        made = Trio(tmp_path, dict(zip(names, disks, strict=True)))
        stack.callback(made.end)
        made.start(*NODES)
        yield made


def die(trio: Trio, load: AimedLoad, places: dict[str, list[int]], name: str, *, leads: bool) -> None:
    """Kill a disk under load, then check what became unavailable. The load writes only to its leaders, or only to its
    followers."""
    leaders = trio.leaders()
    hit = [index for index in places[name] if (leaders[index] == 1) is leads]
    assert hit, (name, places, leaders)
    load.aim_at(hit)
    trio.disks[name].kill()
    until(f"the end of {name}", lambda: trio.has_left(places[name]))
    assert load.acknowledged_since(time.monotonic()), (
        "no record was acknowledged on the partitions of the dead disk"
    )
    until("only its lock is open there", lambda: trio.open_on(name) <= {".lock"} or None)
    server = trio.servers[1]
    assert server.is_running(), server.log_tail()
    assert "event=connection.bug" not in trio.log
    assert "Traceback" not in trio.log
    load.aim_at([index for index in places["sound"] if leaders[index] == 1])


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_disks_die_under_load(trio: Trio, turn: int) -> None:
    """A dead disk takes only its own replicas offline. The node can still be stopped cleanly and started again."""
    load = AimedLoad(trio.bootstrap)
    load.start()
    everything = load.aim
    until("all replicas in sync", lambda: trio.is_in_sync(load.aim))
    places = trio.deal_out(everything)
    for number, name in enumerate([each for each in trio.disks if each != "sound"]):
        die(trio, load, places, name, leads=(number + turn) % len(MORTAL) < 2)
    sound = places["sound"]
    assert trio.servers[1].stop() == 0, trio.log
    trio.start(1)
    until("its sound disk in sync again", lambda: trio.is_in_sync(sound))
    load.aim_at(everything)
    print(load.finish())
    assert trio.log.count("event=log_dir.offline") == len(MORTAL)
