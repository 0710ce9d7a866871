"""Mistyped commands, options and names: the error names the most similar word that exists."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from odradek.cli.streams.suggestions import closest, did_you_mean
from tests.cli.running import odradek_here
from tests.client.fake_broker import LoopbackBroker
from tests.node_process import RunningNode


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("topc list", "unknown command topc; did you mean topic? `odradek --help` shows the commands"),
        (
            "topic ls",
            "unknown command ls; did you mean list? `odradek topic --help` shows the commands",
        ),
        (
            "cluster stats",
            "unknown command stats; did you mean status? `odradek cluster --help` shows the commands",
        ),
        ("zzzzz", "unknown command zzzzz: `odradek --help` shows the commands"),
        (
            "topic list --tmeout=3",
            "the option --tmeout=3 does not exist; did you mean --timeout? `odradek topic list --help` shows the options",
        ),
        (
            "config get topc x",
            "argument kind: invalid choice: 'topc' (choose from 'broker', 'topic', 'group', 'client-metrics'); did you mean "
            "topic? `odradek config get --help` shows the options",
        ),
    ],
)
def test_a_mistyped_word(words: str, said: str) -> None:
    """The line names the wrong word, the most similar right word, and the help."""
    done = odradek_here(*words.split())
    assert (done.code, done.out, done.err) == (2, "", f"odradek: {said}\n")


def test_names_that_are_similar() -> None:
    """At most three names are suggested, the most similar first. A strange word gets none."""
    names = ["orders", "orders-2", "orders-dlq", "orders-eu", "payments"]
    assert closest("ordres", names)[0] == "orders"
    assert len(closest("orders-", names)) == 3
    assert closest("x" * 40_000, names) == []
    assert did_you_mean("payment", names) == "; did you mean payments?"
    assert did_you_mean("ORDERS", names).startswith("; did you mean orders")
    assert did_you_mean("zebra", names) == ""


@pytest.mark.xdist_group("cli")
def test_names_of_the_cluster(node: RunningNode, fresh_topic: Callable[[str], str]) -> None:
    """For a topic or group that does not exist, the error names the most similar ones of the cluster."""
    name = fresh_topic("kitchen-orders")

    def refusal(*words: str) -> str:
        return odradek_here(*words, bootstrap=node.bootstrap).refusal()

    assert odradek_here("topic", "create", name, bootstrap=node.bootstrap).code == 0
    read = odradek_here("consume", name, "--group", f"{name}-readers", bootstrap=node.bootstrap)
    assert read.code == 0
    for words in (("topic", "describe"), ("topic", "delete"), ("consume",), ("config", "get", "topic")):
        assert f"did you mean {name}" in refusal(*words, f"{name}s"), words
    assert f"did you mean {name}-readers" in refusal("group", "describe", f"{name}-reader")
    assert "did you mean retention.ms" in refusal("config", "set", "topic", name, "retention.mss=1")
    assert "did you mean" not in refusal("config", "set", "topic", name, "zebra=1")


def test_a_cluster_that_does_not_list_its_names() -> None:
    """The error of the command itself is printed if the cluster has no similar name."""
    with LoopbackBroker() as server:
        server.broker.add_topic("words")
        said = odradek_here("topic", "describe", "zebra", bootstrap=server.bootstrap).refusal()
    assert said == "topic zebra does not exist (UNKNOWN_TOPIC_OR_PARTITION)"
