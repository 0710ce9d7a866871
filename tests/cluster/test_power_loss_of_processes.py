"""Three nodes as processes lose unsynced data: they are killed, and then the test truncates their logs."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from odradek import Client, Producer
from odradek.client.admin.admin_topics import NewTopic
from testkit.processes import free_ports
from tests.cli.nodes.test_dev import line
from tests.cli.running import odradek
from tests.cli.running import start as start_command
from tests.cluster.test_real_nodes import PATIENCE_SECONDS, in_sync, server, until, values

pytestmark = pytest.mark.xdist_group("cluster")

NODES = (1, 2, 3)
CLUSTER_ID = "H5nlA7uKR0-zDRxvMJS5iw"
WRITTEN = 20
KEPT = {1: 9, 2: 15, 3: 4}
"""The number of batches that each node's disk has kept. The next one is torn."""


def node_settings(tmp_path: Path) -> dict[int, dict[str, str]]:
    """Return the settings of three combined nodes."""
    ports = free_ports(6)
    voters = ",".join(f"{each}@127.0.0.1:{ports[each - 1]}" for each in NODES)
    return {
        each: {
            "node.id": str(each),
            "process.roles": "broker,controller",
            "listeners": f"PLAINTEXT://127.0.0.1:{ports[each + 2]},CONTROLLER://127.0.0.1:{ports[each - 1]}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": voters,
            "log.dirs": str(tmp_path / str(each)),
        }
        for each in NODES
    }


def cut(path: Path, batches: int) -> None:
    """Truncate a segment after so many batches and a torn piece of the next one."""
    data = path.read_bytes()
    place = 0
    for _ in range(batches):
        (length,) = struct.unpack_from(">i", data, place + 8)
        place += 12 + length
    assert place + 30 < len(data), "the log has too few batches to lose any"
    path.write_bytes(data[: place + 30])


@contextmanager
def doomed(tmp_path: Path, settings: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Format a node's directory, and run the node until the block ends. Then kill it."""
    path = tmp_path / f"node-{settings['node.id']}.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    formatted = odradek("storage", "format", path, "--cluster-id", CLUSTER_ID)
    assert formatted.code == 0, formatted.err
    process = start_command(("server", path), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_ready(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait until all nodes serve."""
    for process in processes:
        assert line(process.stdout) == "ready"


def test_the_longest_log_leads_when_all_have_lost_power(tmp_path: Path) -> None:
    """After a power loss, the node with the longest log leads, and every node returns all of its records."""
    nodes = node_settings(tmp_path)
    bootstrap = ",".join(
        each["listeners"].split(",")[0].removeprefix("PLAINTEXT://") for each in nodes.values()
    )
    with ExitStack() as stack:
        wait_ready([stack.enter_context(doomed(tmp_path, nodes[each])) for each in NODES])
        with Client(bootstrap) as client:
            topic = NewTopic("t", 1, 3, configs={"min.insync.replicas": "2"})
            (created,) = client.admin.create_topics([topic])
            assert created.error is None, created.error
        with Producer(bootstrap_servers=bootstrap, acks="all") as producer:
            for value in range(WRITTEN):
                producer.send("t", value=str(value).encode()).result(PATIENCE_SECONDS)
        until("three in sync", lambda: in_sync(bootstrap, "t", 3))
    for each, batches in KEPT.items():
        cut(tmp_path / str(each) / "t-0" / f"{0:020}.log", batches)
    with ExitStack() as stack:
        wait_ready([stack.enter_context(server(tmp_path, nodes[each], CLUSTER_ID)) for each in NODES])
        until("three in sync", lambda: in_sync(bootstrap, "t", 3))
        with Client(bootstrap) as client:
            (described,) = client.admin.describe_topics(["t"])
            assert described.partitions[0].leader == 2
        assert values(bootstrap, "t") == list(range(KEPT[2]))
