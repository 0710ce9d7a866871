"""Combined nodes as processes: a node that was absent from a recovery has a topic that the copy lacked."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek import Client
from odradek.client.admin.admin_topics import NewTopic
from tests.cli.running import odradek_here
from tests.cluster.recovery.stopped_cluster import Cluster
from tests.cluster.test_real_nodes import produce, until, values

pytestmark = pytest.mark.xdist_group("cluster")


def create_on(cluster: Cluster, name: str, replicas: list[int]) -> None:
    configs = {"min.insync.replicas": "1"}
    with Client(cluster.bootstrap) as client:
        (created,) = client.admin.create_topics([NewTopic(name, assignments={0: replicas}, configs=configs)])
        assert created.error is None, created.error


def test_a_topic_that_only_the_absent_node_has_comes_back(tmp_path: Path) -> None:
    """Node 3 has a stale copy, and the topic `late` is on node 4 alone, which is absent from the recovery. When node
    4 returns, it refuses to set its log aside, and another recovery restores the topic.
    """
    cluster = Cluster.make(tmp_path, 4)
    with cluster.ended():
        cluster.start(1, 2, 3, 4)
        create_on(cluster, "early", [3, 4])
        produce(cluster.bootstrap, "early", range(10))
        cluster.stop(3)
        create_on(cluster, "late", [4])
        produce(cluster.bootstrap, "late", range(20))
        cluster.stop(1, 2, 4)
        cluster.destroy_metadata(1, 2)
        read = [cluster.properties(each) for each in (1, 2, 3)]
        cluster.recovered("--absent", "4", configs=read)
        cluster.start(1, 2, 3)
        cluster.start(4, wait=False)
        assert "the metadata log was recovered without this node" in cluster.end_of(4)
        anew = odradek_here("quorum", "begin-anew", cluster.properties(4), "--execute")
        assert anew.code == 0, anew.err
        cluster.start(4, wait=False)
        last = cluster.end_of(4, status=78)
        assert f"{cluster.records(4)}/late-0" in last
        assert "run `odradek quorum recover` again with this node" in last
        cluster.stop(1, 2, 3)
        cluster.recovered(lost=())
        cluster.start(1, 2, 3, 4)
        until("late is read", lambda: values(cluster.bootstrap, "late") == list(range(20)))
        assert values(cluster.bootstrap, "early") == list(range(10))
