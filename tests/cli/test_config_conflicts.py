"""Topic configurations that conflict: `odradek config get topic NAME --explain` describes their real effect."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from odradek import Client
from odradek.cli.settings.config_conflicts import conflicts
from odradek.client.admin import NewTopic
from tests.cli.running import odradek_here
from tests.node_process import RunningNode

DEFAULTS = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
    "max.message.bytes": "1048588",
    "min.insync.replicas": "1",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "9223372036854775807",
    "delete.retention.ms": "86400000",
}


def test_defaults_do_not_fight() -> None:
    """Default values are never reported as conflicts."""
    assert conflicts(DEFAULTS, (), 1) == []
    assert conflicts({}, (), 3) == []


@pytest.mark.parametrize(
    ("own", "replicas", "key"),
    [
        ({"retention.bytes": "1000"}, 3, "retention.bytes"),
        ({"segment.bytes": "1048576", "max.message.bytes": "2000000"}, 3, "max.message.bytes"),
        ({"min.insync.replicas": "2"}, 1, "min.insync.replicas"),
        ({"min.insync.replicas": "3"}, 3, "min.insync.replicas"),
        ({"retention.ms": "1000"}, 3, "retention.ms"),
        ({"cleanup.policy": "compact", "retention.bytes": "2000000000"}, 3, "retention.bytes"),
        ({"cleanup.policy": "compact", "delete.retention.ms": "0"}, 3, "delete.retention.ms"),
        (
            {"cleanup.policy": "compact,delete", "min.compaction.lag.ms": "604800000"},
            3,
            "min.compaction.lag.ms",
        ),
    ],
)
def test_each_fight_is_told_of_its_key(own: dict[str, str], replicas: int, key: str) -> None:
    """If two valid settings conflict, the text for the key explains what really happens."""
    ((told, text),) = conflicts({**DEFAULTS, **own}, own, replicas)
    assert told == key
    assert len(text) > 50


def test_the_command_explains_a_fight(node: RunningNode, fresh_topic: Callable[[str], str]) -> None:
    """`--explain` prints the conflict after the key's description, and `--json` lists it in `conflicts`."""
    topic = fresh_topic("fights")
    with Client(node.bootstrap) as client:
        (made,) = client.admin.create_topics([NewTopic(topic, 1, 1, {"retention.bytes": "1000"})])
        assert made.error is None
    asked = ("config", "get", "topic", topic)
    text = " ".join(
        odradek_here(*asked, "retention.bytes", "--explain", bootstrap=node.bootstrap).out.split()
    )
    assert "BUT only whole, finished segments are deleted" in text
    assert "BUT" not in odradek_here(*asked, "cleanup.policy", "--explain", bootstrap=node.bootstrap).out
    document = odradek_here(*asked, "--explain", "--json", bootstrap=node.bootstrap).json()
    assert [each["key"] for each in document["conflicts"]] == ["retention.bytes"]
