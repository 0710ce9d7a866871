"""The active controller's metadata disk hangs, in a cluster of three. Another controller leads, and decisions go on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from odradek.metadata_quorum.replica.quorum_leader import SYNC_SECONDS_MAX
from testkit.processes import base_port
from tests.cli.nodes.test_dev import alive, line
from tests.cli.running import ROOT, command, environment
from tests.cluster.disks.hanging_syncs import HangingSyncs
from tests.cluster.test_real_nodes import PATIENCE_SECONDS, create, leader_of_quorum, until

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.long]


@attrs.frozen
class Cluster:
    """A cluster of `odradek dev` with three nodes."""

    folder: Path
    addresses: dict[int, str]
    pids: dict[int, int]

    def log_of(self, node_id: int) -> str:
        return (self.folder / f"node-{node_id}.log").read_text()

    def metadata_log_of(self, node_id: int) -> Path:
        (found,) = (self.folder / f"node-{node_id}").rglob("__cluster_metadata-0")
        return found


@contextmanager
def three_nodes(folder: Path, syncs: HangingSyncs) -> Iterator[Cluster]:
    port = base_port(3)
    variables = environment() | syncs.environment
    variables["PYTHONPATH"] += f":{ROOT}"
    process = subprocess.Popen(
        command("dev", "--nodes", "3", "--port", str(port), "--data", folder),
        env=variables,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        told = [dict(word.split("=", 1) for word in line(process.stdout).split()) for _ in range(3)]
        assert line(process.stdout) == "ready"
        yield Cluster(
            folder,
            {int(each["node"]): each["address"] for each in told},
            {int(each["node"]): int(each["pid"]) for each in told},
        )
    finally:
        syncs.answer()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def test_an_active_controller_whose_metadata_disk_hangs(tmp_path: Path) -> None:
    """Topics can be created all the time, first by the old leader and then by a new one. The old one finally
    follows."""
    syncs = HangingSyncs.prepare(tmp_path / "syncs")
    with three_nodes(tmp_path / "data", syncs) as cluster:
        first = leader_of_quorum(cluster.addresses[1])
        other = cluster.addresses[first % 3 + 1]
        create(other, "before", 3)
        with syncs.hanging(cluster.metadata_log_of(first)):
            for number in range(3):
                create(other, f"meanwhile-{number}", 3)
            until("another leader", lambda: leader_of_quorum(other) != first or None)
            create(other, "after", 3)
        until("the end", lambda: "event=metadata.disk_answers" in cluster.log_of(first) or None)
        assert "event=metadata.disk_late" in cluster.log_of(first)
        create(cluster.addresses[first], "again", 3)


@pytest.mark.skipif("ODRADEK_TEST_DISKS" not in os.environ, reason="runs in make test-disks")
def test_after_a_minute_the_node_ends(tmp_path: Path) -> None:
    """After a minute the node with the hung disk stops, as after a failed sync. The other nodes keep running."""
    syncs = HangingSyncs.prepare(tmp_path / "syncs")
    with three_nodes(tmp_path / "data", syncs) as cluster:
        first = leader_of_quorum(cluster.addresses[1])
        other = cluster.addresses[first % 3 + 1]
        with syncs.hanging(cluster.metadata_log_of(first)):
            for number in range(20):
                until(f"topic {number}", lambda number=number: _created(other, f"t{number}"))
            deadline = time.monotonic() + SYNC_SECONDS_MAX + PATIENCE_SECONDS
            while alive(cluster.pids[first]):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            log = cluster.log_of(first)
            assert "event=metadata.disk_hangs" in log
            assert "do not return" in log.splitlines()[-1]
            create(other, "after", 2)


def _created(bootstrap: str, name: str) -> bool:
    create(bootstrap, name, 2)
    return True
