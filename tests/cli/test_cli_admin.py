"""Commands for groups, configurations and disks against our own node, with output as text and as JSON."""

from __future__ import annotations

import io
import json
import signal
import subprocess
from collections.abc import Callable

import pytest

from odradek.cli.__main__ import main
from tests.cli.running import Outcome, command, environment, words_of
from tests.node_process import RunningNode

pytestmark = pytest.mark.xdist_group("cli")
Run = Callable[..., Outcome]


@pytest.fixture
def run(node: RunningNode, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command against the node, in this process: a hundred starts of Python would take longer than the tests."""
    monkeypatch.setenv("ODRADEK_BOOTSTRAP", node.bootstrap)

    def run_here(*words: str, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(words)
        return Outcome(code, *capsys.readouterr())

    return run_here


@pytest.fixture
def topic(run: Run, fresh_topic: Callable[[str], str]) -> str:
    """A topic with two partitions: four records in the first, one in the other."""
    name = fresh_topic("cli")
    assert run("topic", "create", name, "--partitions", "2").code == 0
    assert run("produce", name, "--partition", "0", stdin=b"a\nb\nc\nd\n").code == 0
    assert run("produce", name, "--partition", "1", stdin=b"e\n").code == 0
    return name


def test_a_group_reads_on_where_it_was(run: Run, topic: str, fresh_topic: Callable[[str], str]) -> None:
    """`consume --group` prints each record once and commits it. The lag counts the records not read yet."""
    group = fresh_topic("group")
    first = run("consume", topic, "--group", group, "--max-messages", "2")
    assert (first.code, len(first.out.splitlines())) == (0, 2), first.err
    document = run("group", "describe", group, "--json").json()["groups"][0]
    assert (document["state"], document["members"], document["lag"]) == ("Empty", [], 3)
    assert document["behind_ms"] > 0
    second = run("consume", topic, "--group", group)
    assert sorted(first.out.split() + second.out.split()) == ["a", "b", "c", "d", "e"]
    assert run("consume", topic, "--group", group).out == ""
    text = run("group", "describe", group).out
    table = words_of(text[text.index("TOPIC ") :])
    assert table == [
        ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "BEHIND", "MEMBER"],
        [topic, "0", "4", "4", "0", "0", "-"],
        [topic, "1", "1", "1", "0", "0", "-"],
    ]
    kind = document["type"]
    assert [group, "Empty", kind, "consumer", "1"] in words_of(run("group", "list", "--type", kind).out)
    assert {
        "group": group,
        "state": "Empty",
        "type": kind,
        "protocol_type": "consumer",
        "coordinator": 1,
    } in run("group", "list", "--state", "Empty", "--json").json()["groups"]
    assert run("group", "delete", group).out == f"group {group} deleted\n"
    # The node may have groups of other tests with similar names, which are proposed.
    refusal, _, _ = run("group", "delete", group).refusal().partition("; did you mean")
    assert refusal == f"group {group} does not exist (GROUP_ID_NOT_FOUND)"
    assert "does not exist" in run("group", "describe", group).refusal()


def test_a_reset_is_shown_before_it_is_done(run: Run, topic: str, fresh_topic: Callable[[str], str]) -> None:
    """A reset needs --execute to change anything. Then the offsets become those of the table."""
    group = fresh_topic("group")
    run("consume", topic, "--group", group)
    shown = run("group", "reset", group, "--to-earliest").out
    assert words_of(shown)[:3] == [
        ["TOPIC", "PARTITION", "FROM", "TO", "CHANGE"],
        [topic, "0", "4", "0", "-4"],
        [topic, "1", "1", "0", "-1"],
    ]
    assert "--execute" in shown.splitlines()[-1]
    assert run("consume", topic, "--group", group).out == ""
    done = run(
        "group", "reset", group, "--shift", "-1", "--topic", f"{topic}:0", "--execute", "--json"
    ).json()
    assert done == {
        "group": group,
        "executed": True,
        "partitions": [{"topic": topic, "partition": 0, "from": 4, "to": 3}],
    }
    assert run("consume", topic, "--group", group).out == "d\n"
    moves = [
        (("--to-latest",), 4),
        (("--to-offset", "2"), 2),
        (("--to-offset", "99"), 4),
        (("--to-time", "2020-01-01"), 0),
        (("--to-time", "@99999999999999"), 4),
        (("--by", "1d"), 0),
        (("--shift", "-3"), 1),
    ]
    for words, offset in moves:
        plan = run("group", "reset", group, *words, "--topic", f"{topic}:0", "--json").json()
        assert [move["to"] for move in plan["partitions"]] == [offset], words


def test_a_group_that_never_was_needs_topics(run: Run, topic: str, fresh_topic: Callable[[str], str]) -> None:
    """Offsets can be set before a group has ever read, but `--topic` must then name the topics."""
    group = fresh_topic("group")
    assert "--topic" in run("group", "reset", group, "--to-latest").refusal()
    assert "no partition 7" in run("group", "reset", group, "--to-latest", "--topic", f"{topic}:7").refusal()
    assert run("group", "reset", group, "--to-latest", "--topic", topic, "--execute").code == 0
    run("produce", topic, "--partition", "1", stdin=b"new\n")
    assert run("consume", topic, "--group", group).out == "new\n"


def test_a_group_with_members_is_left_alone(
    run: Run, node: RunningNode, topic: str, fresh_topic: Callable[[str], str]
) -> None:
    """`describe` shows members with their partitions. A reset and a deletion are refused until the members stop."""
    group = fresh_topic("group")
    member = subprocess.Popen(
        command("consume", topic, "--group", group, "--follow"),
        stdout=subprocess.PIPE,
        env=environment(node.bootstrap),
    )
    try:
        assert member.stdout is not None
        assert member.stdout.readline()
        text = run("group", "describe", group).out
        members = words_of(text[text.index("MEMBER  CLIENT") :])
        row = dict(zip(members[0], members[1], strict=True))
        assert (row["CLIENT"], row["HOST"], row["INSTANCE"]) == ("odradek-cli", "127.0.0.1", "-")
        assert row["PARTITIONS"] == row.get("TARGET", f"{topic}:0-1") == f"{topic}:0-1"
        assert (
            "has 1 member: stop"
            in run("group", "reset", group, "--to-latest", "--topic", topic, "--execute").refusal()
        )
        assert "still has members" in run("group", "delete", group).refusal()
        (document,) = run("group", "describe", group, "--json").json()["groups"]
        (each,) = document["members"]
        assert [p["member_id"] for p in document["partitions"]] == [each["member_id"]] * 2
    finally:
        member.terminate()
        member.communicate()


def test_an_interrupted_member_commits_what_it_printed(
    run: Run, node: RunningNode, topic: str, fresh_topic: Callable[[str], str]
) -> None:
    """After Ctrl-C the exit status is 130 and stderr is empty. The next member continues after the last printed
    record."""
    group = fresh_topic("group")
    member = subprocess.Popen(
        command("consume", topic, "--group", group, "--follow"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(node.bootstrap),
    )
    assert member.stdout is not None
    printed = sorted(member.stdout.readline() for _ in range(5))
    assert printed == [b"a\n", b"b\n", b"c\n", b"d\n", b"e\n"]
    member.send_signal(signal.SIGINT)
    assert member.communicate() == (b"", b"")
    assert member.returncode == 130
    (document,) = run("group", "describe", group, "--json").json()["groups"]
    assert (document["state"], document["lag"]) == ("Empty", 0)


def test_group_options_that_make_no_sense(run: Run, topic: str) -> None:
    """Each invalid combination of options ends with status 2 and one line."""
    for words in (("--partition", "0"), ("--from", "3"), ("--from", "1h")):
        outcome = run("consume", topic, "--group", "g", *words)
        assert (outcome.code, outcome.out, len(outcome.err.splitlines())) == (2, "", 1)


def test_places_to_begin(run: Run, topic: str) -> None:
    """`--from` takes a negative count (the last records of each partition), `latest`, or an offset."""
    assert run("consume", topic, "--from", "-1").out in ("d\ne\n", "e\nd\n")
    assert run("consume", topic, "--from", "latest").out == ""
    assert (
        run("consume", topic, "--from", "1", "--partition", "0", "--format", "%o=%v").out == "1=b\n2=c\n3=d\n"
    )


def test_records_are_copied_as_json(run: Run, topic: str, fresh_topic: Callable[[str], str]) -> None:
    """`produce --input json` restores keys, headers and times from the output of `consume --json`."""
    copy = fresh_topic("copy")
    assert run("topic", "create", copy).code == 0
    run("produce", topic, "--key-separator", ":", "--header", "h=1", "--partition", "1", stdin=b"k:\xff\n")
    printed = run("consume", topic, "--partition", "1", "--json").out
    assert run("produce", copy, "--input", "json", stdin=printed.encode()).code == 0
    copied = run("consume", copy, "--json").json_lines()
    place = {"topic", "partition"}
    assert [{k: v for k, v in each.items() if k not in place} for each in copied] == [
        {k: v for k, v in json.loads(line).items() if k not in place} for line in printed.splitlines()
    ]
    assert "line 2 is not a record" in run("produce", copy, "--input", "json", stdin=b"{}\n5\n").refusal()


def test_a_topic_is_altered(run: Run, topic: str) -> None:
    """`topic alter` changes partitions and settings, and resets settings. A failure gives its reason and what was done
    before."""
    assert run("topic", "alter", topic, "--config", "retention.ms=1000000", "--partitions", "3").out == (
        f"topic {topic} altered: retention.ms, 3 partitions\n"
    )
    (described,) = run("topic", "describe", topic, "--json").json()["topics"]
    assert (described["configs"], len(described["partitions"])) == ({"retention.ms": "1000000"}, 3)
    assert (
        "would be altered" in run("topic", "alter", topic, "--unset", "retention.ms", "--validate-only").out
    )
    assert run("topic", "alter", topic, "--unset", "retention.ms", "--json").json() == {
        "topic": topic,
        "changed": True,
        "partitions": None,
        "configs": ["retention.ms"],
    }
    refusal = run("topic", "alter", topic, "--config", "retention.ms=9", "--partitions", "2").refusal()
    assert "INVALID_PARTITIONS" in refusal
    assert "changed before: retention.ms" in refusal
    assert "INVALID_CONFIG" in run("topic", "alter", topic, "--config", "cleanup.policy=none").refusal()
    assert run("topic", "alter", topic).code == 2


def test_configurations_are_changed(run: Run, topic: str) -> None:
    """`config set` sets, unsets, appends and subtracts values of topics, of one broker and of all brokers."""
    assert (
        run("config", "set", "topic", topic, "retention.ms=5000000").out
        == f"topic {topic}: retention.ms changed\n"
    )
    assert run("config", "set", "topic", topic, "--append", "cleanup.policy=compact").code == 0
    assert run("config", "get", "topic", topic, "cleanup.policy").out == "delete,compact\n"
    assert (
        run(
            "config", "set", "topic", topic, "--subtract", "cleanup.policy=delete", "--unset", "retention.ms"
        ).code
        == 0
    )
    changed = words_of(run("config", "get", "topic", topic, "--set-only").out)
    assert ["cleanup.policy", "topic", "compact"] in changed
    assert "retention.ms" not in [row[0] for row in changed]
    assert run("config", "set", "broker", "all", "log.retention.ms=777777777", "--json").json() == {
        "kind": "broker",
        "name": "all",
        "changed": ["log.retention.ms"],
    }
    assert run("config", "get", "broker", "1", "log.retention.ms").out == "777777777\n"
    assert run("config", "set", "broker", "all", "--unset", "log.retention.ms").code == 0
    assert "INVALID" in run("config", "set", "broker", "1", "log.dirs=/x").refusal()
    assert (
        "INVALID_CONFIG"
        in run("config", "set", "topic", topic, "retention.ms=soon", "--validate-only").refusal()
    )


def test_disks(run: Run, topic: str) -> None:
    """`disk list` shows each directory with its use. The path is the last column."""
    header, row, *alarms = words_of(run("disk", "list").out)
    assert header[:6] == ["BROKER", "STATE", "REPLICAS", "LOGS", "FREE", "USED"]
    assert header[6:] == ["FILLS/H", "HOURS", "LEFT", "SYNC", "ERRORS", "SCRUB", "DIRECTORY"]
    assert all("full in" in " ".join(alarm) for alarm in alarms), alarms
    assert row[:2] == ["1", "online"]
    (broker,) = run("disk", "list", "--json").json()["brokers"]
    (directory,) = broker["directories"]
    assert (broker["broker"], directory["online"], directory["path"]) == (1, True, row[-1])
    sizes = {(r["topic"], r["partition"]): r["size"] for r in directory["replicas"]}
    assert sizes[topic, 0] > sizes[topic, 1] > 0
    topics = words_of(run("disk", "list", "--topics").out)
    assert topics[0] == ["BROKER", "TOPIC", "REPLICAS", "LOGS", "DIRECTORY"]
    assert topic in [row[1] for row in topics]
    assert "there is no broker 9" in run("disk", "list", "--broker", "9").refusal()
