"""`cluster health` and `cluster status` on three nodes: a whole cluster, and a cluster without one node."""

from __future__ import annotations

import time

import pytest

from tests.cli.nodes.test_three_nodes import Nodes, nodes

pytestmark = [pytest.mark.xdist_group("health"), pytest.mark.long]
__all__ = ["nodes"]
LOST = 2


def test_a_whole_cluster_is_healthy(nodes: Nodes) -> None:
    """A whole cluster has no problem, and both commands end with 0."""
    words = ("topic", "create", "spread", "--partitions", "3", "--replication-factor", "3")
    assert nodes.run(*words).code == 0
    nodes.until("all is well", lambda: nodes.run("cluster", "health").code == 0)
    text = nodes.run("cluster", "health", "--transactions").out
    assert text == "the cluster is healthy: 3 voters, 3 brokers, 3 partitions\n"
    document = nodes.run("cluster", "health", "--json").json()
    assert (document["healthy"], document["problems"]) == (True, [])
    assert nodes.run("cluster", "status", "--json").json()["healthy"] is True


def test_a_killed_node_is_seen_at_once(nodes: Nodes) -> None:
    """Right after a broker's death its replicas count as missing, before the controllers miss it.

    The health then names the broker, its partitions and what to do. It waits for the return of the node.
    """
    nodes.kill(LOST)
    document = nodes.run("cluster", "status", "--json").json(3)
    assert len(document["under_replicated_partitions"]) == 3, document
    (lost,) = [each for each in document["brokers"] if each["broker"] == LOST]
    assert lost["answers"] is False
    nodes.until("the death is noticed", lambda: "broker 2 (" in nodes.run("cluster", "health").out)
    nodes.until("it is fenced", lambda: "is down, with 3 replicas" in nodes.run("cluster", "health").out)
    problems = nodes.run("cluster", "health", "--json").json(3)["problems"]
    kinds = {each["kind"] for each in problems}
    assert {"broker-down", "under-replicated"} <= kinds <= {"broker-down", "under-replicated", "silent-voter"}
    (down,) = [each for each in problems if each["kind"] == "broker-down"]
    assert down["broker"] == LOST
    assert "odradek broker drain 2" in down["remedy"]
    nodes.until("the voter is silent", lambda: "controller 2 has not" in nodes.run("cluster", "health").out)
    text = nodes.run("cluster", "health")
    assert text.code == 3
    assert "3 partitions have fewer replicas in sync than they should have: spread-0, spread-1" in text.out
    assert "the quorum survives no further loss: start it, or read its log" in text.out
    assert "healthy" not in text.out


def test_the_wait_ends_when_all_is_well(nodes: Nodes) -> None:
    """`--wait SECONDS` ends with 3 when its time is over, and with 0 as soon as the cluster is healthy."""
    began = time.monotonic()
    assert nodes.run("cluster", "health", "--wait", "0.5").code == 3
    assert time.monotonic() >= began
    nodes.start(LOST)
    done = nodes.run("cluster", "health", "--wait", "60")
    assert (done.code, done.out) == (0, "the cluster is healthy: 3 voters, 3 brokers, 3 partitions\n")
