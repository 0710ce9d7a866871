"""`odradek topic purge` and `odradek topic clone`: the records of a topic are deleted, and copied to a new topic."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from odradek.cli.commands.topic import cloning
from odradek.cli.failure import CliError
from odradek.wire.topic_partition import TopicPartition
from tests.cli.running import Outcome, odradek_here
from tests.node_process import RunningNode

pytestmark = pytest.mark.xdist_group("cli")
Run = Callable[..., Outcome]


@pytest.fixture
def run(node: RunningNode) -> Run:
    """Run a command against the node, in this process."""
    return lambda *words, stdin=b"": odradek_here(*words, bootstrap=node.bootstrap, stdin=stdin)


@pytest.fixture
def topic(run: Run, fresh_topic: Callable[[str], str]) -> str:
    """A topic with two partitions of three records each, from 1970, 1985 and 2001."""
    name = fresh_topic("records")
    assert run("topic", "create", name, "--partitions", "2", "--config", "retention.ms=-1").code == 0
    for index in ("0", "1"):
        lines = [
            json.dumps({"key": f"k{index}", "value": f"v{number}", "timestamp": number * 500_000_000_000})
            for number in range(3)
        ]
        done = run("produce", name, "--partition", index, "--input", "json", stdin="\n".join(lines).encode())
        assert done.code == 0, done.err
    return name


def spans(run: Run, topic: str) -> list[tuple[int, int]]:
    """Return the start and the end of each partition."""
    (shown,) = run("topic", "describe", topic, "--offsets", "--json").json()["topics"]
    return [(each["start_offset"], each["end_offset"]) for each in shown["partitions"]]


def test_a_purge_only_shows_what_it_would_delete(run: Run, topic: str) -> None:
    """By default nothing is deleted, and the output says how much `--execute` would delete."""
    text = run("topic", "purge", topic).out
    assert "nothing was changed: add --execute to delete the records of 6 offsets" in text
    assert spans(run, topic) == [(0, 3), (0, 3)]


def test_a_purge_deletes_below_the_high_watermark(run: Run, topic: str) -> None:
    """`--execute` deletes all records. New ones follow at the next offset."""
    document = run("topic", "purge", topic, "--execute", "--json").json()
    assert [(each["new_start"], each["deleted"]) for each in document["partitions"]] == [(3, 3), (3, 3)]
    assert spans(run, topic) == [(3, 3), (3, 3)]
    assert run("consume", topic).out == ""
    assert run("produce", topic, "--partition", "0", stdin=b"new\n").code == 0
    assert run("consume", topic, "--format", "%o %v\\n").out == "3 new\n"


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        (("--before", "1"), [1, 1]),
        (("--before", "2", "--partition", "1"), [0, 2]),
        (("--before", "1990-01-01"), [2, 2]),
        (("--before", "@0"), [0, 0]),
        (("--before", "@9000000000000"), [3, 3]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_a_purge_of_the_oldest(run: Run, topic: str, options: tuple[str, ...], starts: list[int]) -> None:
    """`--before` limits the purge to offsets below a number, or to records before a time; `--partition` to a partition."""
    assert run("topic", "purge", topic, *options, "--execute").code == 0
    assert [start for start, _ in spans(run, topic)] == starts


def test_purges_that_are_refused(run: Run, topic: str) -> None:
    """An offset beyond the end, an unknown partition, an internal and a compacted topic are refused, with a reason."""
    beyond = run("topic", "purge", topic, "--before", "4")
    assert (beyond.code, "has no offset 4" in beyond.err) == (2, True)
    assert "no partition 7" in run("topic", "purge", topic, "--partition", "7").refusal()
    run("consume", topic, "--group", f"{topic}-group")
    assert "internal topic" in run("topic", "purge", "__consumer_offsets").refusal()
    assert run("topic", "alter", topic, "--set", "cleanup.policy=compact").code == 0
    assert "POLICY_VIOLATION" in run("topic", "purge", topic, "--execute").refusal()
    assert spans(run, topic) == [(0, 3), (0, 3)]


def test_settings_of_a_topic(run: Run, topic: str) -> None:
    """`alter --set` and `--unset` change a topic like `config set`; a key given twice is refused."""
    done = run("topic", "alter", topic, "--set", "max.message.bytes=2000", "--unset", "retention.ms")
    assert done.out == f"topic {topic} altered: max.message.bytes, retention.ms\n"
    (shown,) = run("topic", "describe", topic, "--json").json()["topics"]
    assert shown["configs"] == {"max.message.bytes": "2000"}
    twice = run("topic", "alter", topic, "--set", "retention.ms=1", "--unset", "retention.ms")
    assert (twice.code, "given more than once" in twice.err) == (2, True)
    twice = run("topic", "create", f"{topic}-2", "--config", "retention.ms=1", "--config", "retention.ms=2")
    assert (twice.code, "given more than once" in twice.err) == (2, True)


def test_a_clone_without_records(run: Run, topic: str) -> None:
    """A clone has the partitions, replicas and configurations of its model, and no record."""
    assert run("topic", "clone", topic, f"{topic}-new").out == (
        f"topic {topic}-new created like {topic}: 2 partitions, retention.ms=-1\n"
    )
    (shown,) = run("topic", "describe", f"{topic}-new", "--json").json()["topics"]
    assert (shown["partitions"][1]["partition"], shown["replication_factor"]) == (1, 1)
    assert shown["configs"] == {"retention.ms": "-1"}
    assert spans(run, f"{topic}-new") == [(0, 0), (0, 0)]
    assert "exists" in run("topic", "clone", topic, f"{topic}-new").refusal()
    assert "does not exist" in run("topic", "clone", f"{topic}-none", f"{topic}-more").refusal()


def test_a_clone_with_records(run: Run, topic: str) -> None:
    """Each record is copied once, in its partition, with key, value, timestamp and order; a tombstone, too."""
    tombstone = json.dumps(
        {"key": "k0", "value": None, "headers": [{"key": "h", "value": "x"}], "timestamp": 5}
    ).encode()
    assert run("produce", topic, "--partition", "0", "--input", "json", stdin=tombstone).code == 0
    assert run("topic", "purge", topic, "--partition", "1", "--before", "1", "--execute").code == 0
    document = run("topic", "clone", topic, f"{topic}-new", "--with-records", "--json").json()
    assert document["records"] == 6

    def records(name: str) -> list[object]:
        found = run("consume", name, "--json").json_lines()
        kept = ("partition", "key", "value", "headers", "timestamp")
        return sorted(
            ([each.get(field) for field in kept] for each in found), key=lambda each: (each[0], str(each))
        )

    assert records(f"{topic}-new") == records(topic)
    assert spans(run, f"{topic}-new") == [(0, 4), (0, 2)]


def test_a_clone_of_a_topic_without_records(run: Run, fresh_topic: Callable[[str], str]) -> None:
    """A clone of an empty topic copies no record, and succeeds."""
    name = fresh_topic("empty")
    assert run("topic", "create", name, "--partitions", "1").code == 0
    assert run("topic", "clone", name, f"{name}-new", "--with-records").out.endswith("0 records copied\n")


@pytest.mark.parametrize("is_read", [False, True], ids=["reading", "writing"])
def test_a_clone_without_a_leader_ends(monkeypatch: pytest.MonkeyPatch, is_read: bool) -> None:
    """A copy ends with what to do if a leader is silent for the time of `--timeout`, while it is read or written."""
    record = SimpleNamespace(topic="t", partition=0, offset=0, value=b"", key=None, headers=(), timestamp=0)
    consumer, producer = Mock(), Mock()
    consumer.poll.side_effect = lambda _: [record] if is_read else []
    consumer.position.return_value = int(is_read)
    producer.send.return_value.result.side_effect = TimeoutError
    monkeypatch.setattr(cloning, "_consumer", lambda _: nullcontext(consumer))
    monkeypatch.setattr(cloning, "_producer", lambda _: nullcontext(producer))
    with pytest.raises(CliError) as raised:
        cloning._copy(argparse.Namespace(timeout=0.05, new="copy"), {TopicPartition("t", 0): (0, 1)})
    text = str(raised.value)
    assert "the copy is incomplete, because" in text
    assert "odradek topic delete copy" in text
    assert ("a record was not acknowledged" if is_read else "nothing came from t-0 for 0.05 s") in text
