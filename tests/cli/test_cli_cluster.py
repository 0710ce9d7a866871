"""Commands for brokers, partitions, the quorum and past events, against our own node."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from odradek.cli.__main__ import main
from odradek.metadata_quorum import features
from odradek.metadata_quorum.features import SUPPORTED_FEATURES, Release
from tests.cli.running import Outcome, words_of
from tests.node_process import RunningNode

pytestmark = pytest.mark.xdist_group("cli")
Run = Callable[..., Outcome]


@pytest.fixture
def run(node: RunningNode, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command against the node, in this process."""
    monkeypatch.setenv("ODRADEK_BOOTSTRAP", node.bootstrap)

    def run_here(*words: str) -> Outcome:
        code = main(words)
        return Outcome(code, *capsys.readouterr())

    return run_here


@pytest.fixture
def topic(run: Run, fresh_topic: Callable[[str], str]) -> str:
    """A topic with two partitions."""
    name = fresh_topic("cluster")
    assert run("topic", "create", name, "--partitions", "2").code == 0
    return name


def test_brokers(run: Run, topic: str) -> None:
    """Brokers are listed with their load. Removing a broker with replicas is refused, and so is an unknown id."""
    rows = words_of(run("broker", "list").out)
    assert rows[0] == ["BROKER", "STATE", "LEADERS", "REPLICAS", "LOGS", "RACK", "ADDRESS"]
    assert rows[1][:2] == ["1", "online"]
    (broker,) = run("broker", "list", "--json").json()["brokers"]
    assert (broker["broker"], broker["online"]) == (1, True)
    assert broker["replicas"] >= 2
    assert "still holds" in run("broker", "remove", "1").refusal()
    assert "there is no broker 7" in run("broker", "remove", "7").refusal()
    assert "only 0 brokers would remain" in run("broker", "drain", "1").refusal()
    assert run("broker", "add", "1").out == "broker 1 has its share of the replicas already\n"
    assert "broker 7 has not registered" in run("broker", "add", "7", "--timeout", "0.1").refusal()


def test_partitions(run: Run, topic: str) -> None:
    """Partitions are listed by topic or by number. A refused move gives its reason, and so does an unnecessary one."""
    (first,) = run("partition", "list", f"{topic}:0", "--json").json()["partitions"]
    assert (first["leader"], first["replicas"], first["isr"], first["adding"]) == (1, [1], [1], [])
    assert first["min_isr"] == 1
    assert run("config", "set", "topic", topic, "min.insync.replicas=2").code == 0
    (first,) = run("partition", "list", f"{topic}:0", "--json").json()["partitions"]
    assert first["min_isr"] == 2
    rows = words_of(run("partition", "list", topic).out)
    assert [row[:5] for row in rows[1:]] == [[topic, "0", "1", "1", "1"], [topic, "1", "1", "1", "1"]]
    assert len(words_of(run("partition", "list", topic, "--offline").out)) == 1
    assert "has no partition 5" in run("partition", "list", f"{topic}:5").refusal()
    assert "nothing to move" in run("partition", "move", topic, "--to", "1").out
    assert "there is no broker 7" in run("partition", "move", topic, "--to", "7").refusal()
    assert "2 replicas need 2 brokers" in run("partition", "move", topic, "--replicas", "2").refusal()
    assert run("partition", "move", "--cancel").out == "no partition is moving\n"
    assert run("partition", "move", "--unthrottle").code == 0
    assert run("partition", "balance", "--json").json() == {
        "executed": False,
        "finished": False,
        "bytes": 0,
        "partitions": [],
    }
    assert run("partition", "elect", topic, "--execute").out == (
        "every partition is led by its preferred replica\n"
    )
    assert run("partition", "elect", topic, "--unclean").out == "every partition is led\n"


def test_features(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster's feature levels are shown beside those of this release. A level that is too high is refused by
    name."""
    found = {each["feature"]: each for each in run("cluster", "features", "--json").json()["features"]}
    transactions = found["transaction.version"]
    assert (transactions["finalized"], transactions["supported_max"], transactions["supported"]) == (
        2,
        2,
        True,
    )
    assert all(each["supported"] for each in found.values())
    assert "cannot serve" not in run("cluster", "features").out
    older = Release({**SUPPORTED_FEATURES, "transaction.version": (0, 1)})
    monkeypatch.setattr(features, "THIS_RELEASE", older)
    found = {each["feature"]: each for each in run("cluster", "features", "--json").json()["features"]}
    assert [name for name, each in found.items() if not each["supported"]] == ["transaction.version"]
    assert (found["transaction.version"]["finalized"], found["transaction.version"]["supported_max"]) == (
        2,
        1,
    )
    assert "this release cannot serve such a cluster" in run("cluster", "features").out


def test_the_quorum(run: Run) -> None:
    """The status names the quorum's leader and voters. Only an observer can become a voter."""
    document = run("quorum", "status", "--json").json()
    assert (document["leader"], [each["node"] for each in document["voters"]]) == (1, [1])
    assert document["voters"][0]["lag"] == 0
    text = run("quorum", "status").out
    assert words_of(text)[-1][:2] == ["1", "leader"]
    assert "there is no observer 4" in run("quorum", "add", "4").refusal()
    assert "node 1 has a vote already" in run("quorum", "add", "1").refusal()
    assert "there is no voter 4" in run("quorum", "remove", "4").refusal()


def test_what_happened(run: Run, topic: str) -> None:
    """`cluster events` shows the metadata log as sentences, filtered by topic. As JSON it adds offsets and times."""
    assert run("config", "set", "topic", topic, "retention.ms=7777777").code == 0
    told = [line[25:] for line in run("cluster", "events", "--topic", topic).out.splitlines()]
    assert told == [
        f"topic {topic} was created",
        f"topic {topic} has 2 new partitions with 1 replica",
        f"topic {topic} has retention.ms=7777777",
    ]
    # --last counts sentences, not records: one sentence may combine several records.
    for count in (1, 2):
        shown = run("cluster", "events", "--topic", topic, "--last", str(count)).out.splitlines()
        assert [line[25:] for line in shown] == told[-count:]
    events = run("cluster", "events", "--all", "--json").json_lines()
    assert "controller 1" in [event["subject"] for event in events]
    assert events[0]["offset"] < events[-1]["offset"]
    (last,) = run("cluster", "events", "--last", "1", "--json").json_lines()
    assert last["subject"] == f"topic {topic}"
    assert run("cluster", "events", "--since", "@99999999999999").out == ""


def test_internal_topics_are_spared(run: Run, topic: str, fresh_topic: Callable[[str], str]) -> None:
    """`topic delete` refuses an internal topic without --force."""
    run("consume", topic, "--group", fresh_topic("group"))
    assert "--force" in run("topic", "delete", "__consumer_offsets").refusal()


def test_defaults_again(run: Run, topic: str) -> None:
    """`config unset` resets a key to its default."""
    assert run("config", "set", "topic", topic, "retention.ms=7777777").code == 0
    assert (
        run("config", "unset", "topic", topic, "retention.ms").out == f"topic {topic}: retention.ms changed\n"
    )
    assert run("config", "get", "topic", topic, "retention.ms").out != "7777777\n"
