"""A quorum is recovered beside a broker whose second disk is dead: its partitions wait for the disk, or for a new one."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek import Client
from odradek.client.admin.admin_topics import NewTopic
from tests.cli.running import odradek_here
from tests.cluster.disks.real_disks import real_disk
from tests.cluster.recovery.stopped_cluster import Cluster
from tests.cluster.test_real_nodes import produce, until, values

pytestmark = pytest.mark.xdist_group("cluster")


def leaderless(cluster: Cluster) -> set[int]:
    """Return the partitions without a leader."""
    with Client(cluster.bootstrap) as client:
        (described,) = client.admin.describe_topics(["t"])
        return {number for number, each in described.partitions.items() if each.leader == -1}


def test_partitions_wait_for_a_dead_disk(tmp_path: Path) -> None:
    """The longest log may be there. So nobody leads them until the disk is back. Then all records are there."""
    with real_disk(tmp_path / "first", "ext4") as sound, real_disk(tmp_path / "second", "ext4") as disk:
        second = disk.path / "records"
        cluster = Cluster.make(tmp_path, formatted=0)
        for node_id in cluster.ids:
            cluster.settings = {}
            if node_id == 3:
                cluster.settings = {
                    "log.dirs": f"{sound.path / 'records'},{second}",
                    "odradek.log.dir.reserve.bytes": str(8 << 20),
                }
            cluster.format(node_id)
        with cluster.ended():
            cluster.start(1, 2, 3)
            with Client(cluster.bootstrap) as client:
                (created,) = client.admin.create_topics(
                    [NewTopic("t", assignments={number: [3, 2] for number in range(4)})]
                )
                assert created.error is None, created.error
            produce(cluster.bootstrap, "t", range(30))
            cluster.stop(1, 2, 3)
            there = {int(each.name.removeprefix("t-")) for each in second.glob("t-*")}
            assert there not in (set(), set(range(4))), "replicas are on both disks"
            disk.sync()
            cluster.destroy_metadata(1, 2)
            disk.kill()

            report = tmp_path / "report"
            inspected = odradek_here("quorum", "inspect", cluster.properties(3), "--to", report)
            assert inspected.code == 0, inspected.err
            assert f"{second} cannot be read" in inspected.out
            assert "Input/output error" in inspected.out
            dry = cluster.recover().json()
            assert [
                each
                for each in dry["evidence"]
                if f"node 3: the log directory {second} cannot be read" in each
            ]
            assert cluster.recovered()["done"] == [1, 2, 3]

            cluster.start(1, 2, 3)
            until("the others lead", lambda: leaderless(cluster) == there or None)
            assert "directory.offline" in cluster.log(3)
            cluster.stop(1, 2, 3)
            disk.mount_again()
            cluster.start(1, 2, 3)
            until("all lead", lambda: leaderless(cluster) == set() or None)
            assert values(cluster.bootstrap, "t") == list(range(30))
