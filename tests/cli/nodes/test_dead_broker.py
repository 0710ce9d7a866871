"""A broker that will never come back.

Its replicas are copied elsewhere; partitions it alone held wait for the operator.
"""

from __future__ import annotations

import pytest

from tests.cli.nodes.test_three_nodes import Nodes, nodes

pytestmark = [pytest.mark.xdist_group("dead-broker"), pytest.mark.long]
__all__ = ["nodes"]
LOST = 3


def _held(nodes: Nodes, broker: int) -> set[str]:
    listed = nodes.run("partition", "list", "--broker", str(broker), "--json").json()["partitions"]
    return {f"{each['topic']}-{each['partition']}" for each in listed}


def _is_down(nodes: Nodes, broker: int) -> bool:
    listed = nodes.run("broker", "list", "--json").json()["brokers"]
    return any(each["broker"] == broker and not each["online"] for each in listed)


def test_a_broker_that_is_gone_for_good(nodes: Nodes) -> None:
    """Replicas with a living leader move. Lost partitions stay assigned until `--accept-loss` names their topic."""
    for name, replicas in (("pair", "2"), ("single", "1")):
        words = ("topic", "create", name, "--partitions", "3", "--replication-factor", replicas)
        assert nodes.run(*words).code == 0
        for index in ("0", "1", "2"):
            assert (
                nodes.run("produce", name, "--partition", index, stdin=(b"x" * 1000 + b"\n") * 3000).code == 0
            )
    (only_there,) = (name for name in _held(nodes, LOST) if name.startswith("single"))
    pairs = len(_held(nodes, LOST)) - 1
    nodes.kill(LOST)
    nodes.until("the death is noticed", lambda: _is_down(nodes, LOST))
    shown = nodes.run("broker", "drain", str(LOST), "--json").json()
    assert [each["topic"] for each in shown["partitions"]] == ["pair"] * pairs
    (kept,) = shown["kept"]
    assert (f"{kept['topic']}-{kept['partition']}", kept["lost"], kept["source"]) == (only_there, True, None)

    late = nodes.run(
        "broker", "drain", str(LOST), "--execute", "--throttle", "300K", "--timeout", "3"
    ).refusal()
    assert "--timeout has passed, and " in late
    assert "did not finish moving" in late
    taken_up = nodes.run("broker", "drain", str(LOST), "--execute", "--throttle", "1G").refusal()
    assert "broker 3 still holds 1 partition" in taken_up
    assert "single: 1 partition with all records on broker 3 alone" in taken_up
    assert "--accept-loss single" in taken_up
    assert _held(nodes, LOST) == {only_there}
    for node in ("1", "2"):
        rates = nodes.run("config", "get", "broker", node, "--set-only").out
        assert "throttled.rate" not in rates
    assert "still holds 1 replica" in nodes.run("broker", "remove", str(LOST)).refusal()

    said = nodes.run("broker", "drain", str(LOST), "--execute", "--accept-loss", "single")
    assert said.code == 0, said
    assert "single: 1 partition without all records: 1 begins empty" in said.out
    # The next command may ask another broker, whose image is a moment older.
    nodes.until("no replica is assigned there", lambda: _held(nodes, LOST) == set())
    assert nodes.run("produce", "single", stdin=b"again\n" * 300).code == 0
    assert nodes.run("quorum", "remove", str(LOST)).code == 0
    assert nodes.run("broker", "remove", str(LOST)).code == 0
    assert LOST not in [each["broker"] for each in nodes.run("broker", "list", "--json").json()["brokers"]]


def test_a_topic_that_is_not_there_cannot_be_given_up(nodes: Nodes) -> None:
    """`--accept-loss` with a misspelt topic is refused before any replica moves."""
    refusal = nodes.run("broker", "drain", "1", "--accept-loss", "sinlge").refusal()
    assert "--accept-loss: topic sinlge does not exist" in refusal
