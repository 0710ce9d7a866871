"""A bit flips in a leader's segment. A cluster of three processes repairs the replica and loses no acknowledged record."""

from __future__ import annotations

import os
import shlex
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from odradek import Client
from odradek.client.admin.admin_topics import NewTopic
from odradek.wire.batches.batch_header import HEADER_SIZE
from testkit.processes import base_port
from tests.cli.nodes.test_dev import line, running
from tests.cli.running import odradek
from tests.cluster.test_real_nodes import QUICK, in_sync, produce, until, values

pytestmark = pytest.mark.xdist_group("cluster")

TOPIC = "rots"
SEGMENT = f"{0:020}.log"


def leader(bootstrap: str) -> int:
    with Client(bootstrap) as client:
        (described,) = client.admin.describe_topics([TOPIC])
        return described.partitions[0].leader


def leads_not(bootstrap: str, broker_id: int) -> int | None:
    now = leader(bootstrap)
    return now if now not in (broker_id, -1) else None


def isr_is(bootstrap: str, count: int) -> bool | None:
    with Client(bootstrap) as client:
        (described,) = client.admin.describe_topics([TOPIC])
        return len(described.partitions[0].isr) == count or None


def flip_a_bit(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes((byte ^ 0x10,)))


def equal_segments(directories: list[Path]) -> bool | None:
    found = {(directory / SEGMENT).read_bytes() for directory in directories}
    return len(found) == 1 or None


def test_a_leader_whose_segment_rots(tmp_path: Path) -> None:
    """A follower cannot fetch the damaged batch, so another replica leads. The damaged log is kept aside, and all
    replicas become equal."""
    port = base_port(3)
    addresses = {node_id: f"127.0.0.1:{port + node_id - 1}" for node_id in (1, 2, 3)}
    bootstrap = ",".join(addresses.values())
    for node_id in addresses:
        (tmp_path / f"node-{node_id}.properties").write_text(QUICK)
    with running("dev", "--nodes", "3", "--port", str(port), "--data", tmp_path, stop=signal.SIGINT) as dev:
        pids = {}
        for _ in addresses:
            told = dict(word.split("=", 1) for word in line(dev.stdout).split())
            pids[int(told["node"])] = int(told["pid"])
        assert line(dev.stdout) == "ready"
        assert "look at the cluster in a browser" in line(dev.stdout)
        with Client(bootstrap) as client:
            (created,) = client.admin.create_topics([NewTopic(TOPIC, 1, 3)])
            assert created.error is None, created.error
        produce(bootstrap, TOPIC, range(100))
        rotten = leader(bootstrap)
        away = next(node_id for node_id in addresses if node_id != rotten)
        (log,) = tmp_path.glob(f"**/node-{rotten}/**/{TOPIC}-0")
        rot_at = (log / SEGMENT).stat().st_size + HEADER_SIZE + 5

        os.kill(pids[away], signal.SIGKILL)
        hint = line(dev.stdout).partition("; to bring it back: ")[2]
        alive = ",".join(address for node_id, address in addresses.items() if node_id != away)
        until("two in sync", partial(isr_is, alive, 2))
        produce(alive, TOPIC, range(100, 200))
        flip_a_bit(log / SEGMENT, rot_at)

        command, *words = shlex.split(hint)
        with running(*words, command=command) as server:
            assert line(server.stdout) == "ready"
            with ThreadPoolExecutor(1) as writers:
                written = writers.submit(produce, bootstrap, TOPIC, range(200, 300))
                until("another leader", partial(leads_not, alive, rotten))
                written.result()
            until("all in sync", partial(in_sync, bootstrap, TOPIC, 3))
            assert values(bootstrap, TOPIC) == list(range(300))
            replicas = [found for found in tmp_path.glob(f"**/{TOPIC}-0") if found.is_dir()]
            assert len(replicas) == 3
            until("equal segments", partial(equal_segments, replicas))
            for replica in replicas:
                verified = odradek("log", "dump", replica, "--verify")
                assert verified.code == 0, (verified.out, verified.err)
            (kept,) = tmp_path.glob(f"**/{TOPIC}-0.*-stray")
            assert f"node-{rotten}" in str(kept)
            assert odradek("log", "dump", kept, "--verify").code != 0
