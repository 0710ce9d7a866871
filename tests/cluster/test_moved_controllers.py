"""All controllers move to other ports. The log still names the old ports, where nothing or a foreign node answers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from odradek import Client
from odradek.wire.uuid_text import uuid_to_text
from testkit.odradek_server import living_nursery
from testkit.processes import free_ports
from tests.cli.nodes.test_dev import all_running, line
from tests.cli.running import odradek_here
from tests.cluster.test_real_nodes import create, produce, until, values

pytestmark = pytest.mark.xdist_group("cluster")

CLUSTER_ID, OTHER_CLUSTER_ID = "H5nlA7uKR0-zDRxvMJS5iw", "AAAAAAAAAAAAAAAAAAAAAQ"
NOWHERE = "127.0.0.1:9"


@attrs.define
class Nodes:
    """Combined nodes as processes, and the current ports of their controllers."""

    directory: Path
    brokers: list[int]
    controllers: list[int]
    bootstrap_servers: str = ""

    @property
    def ids(self) -> range:
        return range(1, len(self.brokers) + 1)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.brokers)

    def directory_of(self, node_id: int) -> str:
        return uuid_to_text(b"directory %06d" % node_id)

    def write(self, node_id: int) -> Path:
        """Write the properties of a node with the current ports."""
        path = self.directory / f"node-{node_id}.properties"
        at = node_id - 1
        servers = ",".join(f"127.0.0.1:{port}" for port in self.controllers)
        settings = {
            "node.id": str(node_id),
            "process.roles": "broker,controller",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.brokers[at]},CONTROLLER://127.0.0.1:{self.controllers[at]}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": self.bootstrap_servers or servers,
            "log.dirs": str(self.directory / str(node_id)),
            "broker.session.timeout.ms": "3000",
        }
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def format(self) -> None:
        voters = ",".join(
            f"{each}@127.0.0.1:{self.controllers[each - 1]}:{self.directory_of(each)}" for each in self.ids
        )
        for node_id in self.ids:
            path = self.write(node_id)
            formatted = odradek_here(
                "storage", "format", path, "--cluster-id", CLUSTER_ID, "--initial-controllers", voters
            )
            assert formatted.code == 0, formatted.err

    def addresses(self) -> dict[int, int]:
        """Return the controller port of each voter, as the metadata log has it."""
        with Client(self.bootstrap) as client:
            voters = client.admin.describe_quorum().voters
        return {each.node_id: each.endpoints[0][2] for each in voters}

    def all_are_new(self) -> bool | None:
        return self.addresses() == dict(zip(self.ids, self.controllers, strict=True)) or None

    @contextmanager
    def run(self) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Run all nodes in the block, and wait until they serve."""
        with all_running(*(("server", self.write(each)) for each in self.ids)) as processes:
            for process in processes:
                assert line(process.stdout) == "ready"
            yield processes


def make(directory: Path, count: int) -> tuple[Nodes, list[int]]:
    """Return formatted nodes, and as many other free ports as there are nodes."""
    ports = free_ports(3 * count)
    nodes = Nodes(directory, ports[:count], ports[count : 2 * count])
    nodes.format()
    return nodes, ports[2 * count :]


@contextmanager
def stranger(directory: Path, port: int, broker_port: int) -> Iterator[None]:
    """Run a node of another cluster whose controller listens on this port."""
    nodes = Nodes(directory, [broker_port], [port])
    directory.mkdir()
    formatted = odradek_here(
        "storage", "format", nodes.write(1), "--cluster-id", OTHER_CLUSTER_ID, "--standalone"
    )
    assert formatted.code == 0, formatted.err
    with nodes.run():
        yield


def fill(nodes: Nodes, first: int, topic: str = "moved") -> None:
    produce(nodes.bootstrap, topic, range(first, first + 50))


def test_three_nodes_move_at_once_and_strangers_have_their_ports(tmp_path: Path) -> None:
    """Three nodes move at once. Their old ports are closed, foreign, or another voter's. Later the new addresses in the
    log suffice."""
    nodes, new = make(tmp_path, 3)
    with nodes.run():
        create(nodes.bootstrap, "moved", 3)
        fill(nodes, 0)
        leader_ports = nodes.addresses()
    old, nodes.controllers = nodes.controllers, [new[0], nodes.controllers[0], new[2]]
    assert leader_ports == dict(zip(nodes.ids, old, strict=True))
    with stranger(tmp_path / "stranger", old[1], new[1]), nodes.run():
        fill(nodes, 50)
        until("new addresses in the log", nodes.all_are_new)
    nodes.bootstrap_servers = NOWHERE
    with nodes.run():
        fill(nodes, 100)
        assert nodes.all_are_new()
        assert values(nodes.bootstrap, "moved") == list(range(150))


def test_five_nodes_move_at_once(tmp_path: Path) -> None:
    """Five voters move at once and still find each other at their start. Their log entries are then updated one by
    one."""
    nodes, new = make(tmp_path, 5)
    nodes.controllers = new
    with nodes.run():
        create(nodes.bootstrap, "moved", 3)
        fill(nodes, 0)
        until("new addresses in the log", nodes.all_are_new)
        assert values(nodes.bootstrap, "moved") == list(range(50))


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a node cleanly."""
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0


def start_again(path: Path) -> subprocess.Popen[bytes]:
    """Start a node, and wait until it serves."""
    process = living_nursery().start_with_pipes(("server", path))
    assert line(process.stdout) == "ready"
    return process


def restart(process: subprocess.Popen[bytes], path: Path) -> subprocess.Popen[bytes]:
    """Stop a node cleanly, then start it with its current file."""
    stop(process)
    return start_again(path)


def test_three_nodes_move_one_by_one(tmp_path: Path) -> None:
    """Nodes move one by one. Each restarts with its new port while the others run with the old bootstrap servers."""
    nodes, new = make(tmp_path, 3)
    with nodes.run() as processes:
        create(nodes.bootstrap, "moved", 3)
        for count, node_id in enumerate(nodes.ids):
            nodes.controllers[node_id - 1] = new[node_id - 1]
            processes[node_id - 1] = restart(processes[node_id - 1], nodes.write(node_id))
            until("the new address in the log", nodes.all_are_new)
            fill(nodes, 50 * count)
        assert values(nodes.bootstrap, "moved") == list(range(150))


def test_a_copy_of_a_voters_directory_takes_no_part(tmp_path: Path) -> None:
    """A copy of a voter's directory is started beside the original. The copy logs both addresses, and neither votes nor
    serves."""
    nodes, new = make(tmp_path, 3)
    copy = attrs.evolve(
        nodes, directory=tmp_path / "copy", brokers=[*nodes.brokers], controllers=[*nodes.controllers]
    )
    copy.brokers[2], copy.controllers[2] = new[:2]
    with nodes.run() as processes:
        create(nodes.bootstrap, "moved", 3)
        stop(processes[2])
        shutil.copytree(tmp_path / "3", tmp_path / "copy" / "3")
        processes[2] = start_again(nodes.write(3))
        process = living_nursery().start_with_pipes(("server", copy.write(3)))
        try:
            assert process.stderr is not None
            told = next(each for each in process.stderr if b"quorum.copied_directory" in each).decode()
            assert f"127.0.0.1:{copy.controllers[2]}" in told
            assert f"127.0.0.1:{nodes.controllers[2]}" in told
            waits = next(each for each in process.stderr if b"node.waiting" in each).decode()
            assert "so one of the two disks is a copy" in waits
            fill(nodes, 0)
            assert nodes.all_are_new()
        finally:
            process.kill()
            process.communicate()
