"""Decisions of a roll-out: the harm that a restart does to partitions, the order of hosts, the kept state, and
waits."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.deploy.plugins import plugin
from tests.deploy.test_modules import status


@pytest.fixture
def ahead() -> ModuleType:
    return plugin("module_utils", "looking_ahead")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return plugin("modules", "gate", monkeypatch)


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return plugin("modules", "before", monkeypatch)


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return plugin("modules", "node_facts", monkeypatch)


@pytest.fixture
def order() -> ModuleType:
    return plugin("filter", "roll_out")


@pytest.fixture
def waiting() -> ModuleType:
    return plugin("plugin_utils", "waiting")


def partition(
    replicas: list[int], isr: list[int] | None = None, least: int | None = 2, **values: Any
) -> dict[str, Any]:
    """Make the entry of `odradek partition list --json` for a partition. Without `isr`, all replicas are in sync."""
    isr = replicas if isr is None else isr
    return {
        "topic": "t",
        "partition": 0,
        "leader": isr[0] if isr else None,
        "replicas": replicas,
        "isr": isr,
        "min_isr": least,
        "adding": [],
        "removing": [],
        **values,
    }


def three(**values: Any) -> dict[str, Any]:
    """Make the status of a whole cluster of three brokers that all vote, changed by `values`."""
    brokers = [{"broker": node, "online": True} for node in (1, 2, 3)]
    quorum = {"leader": 1, "voters": [1, 2, 3], "silent_voters": []}
    return status(**{"brokers": brokers, "quorum": quorum, **values})


@pytest.mark.parametrize(
    ("found", "stopping", "refused", "unspared"),
    [
        (partition([1, 2, 3]), [1], None, None),
        (partition([1, 2, 3], [1, 2]), [3], None, None),
        (partition([1, 2, 3], [1, 2]), [1], "cannot be written", None),
        (partition([1, 2, 3], [1]), [1], "cannot be read", None),
        (partition([1, 2, 3], [1], least=1), [1], "cannot be read or written", None),
        (partition([1, 2, 3], [1, 2], least=1), [1], None, None),
        (partition([1]), [1], None, "cannot be read or written"),
        (partition([1]), [2], None, None),
        (partition([1, 2]), [1], None, "cannot be written"),
        (partition([1, 2], [1]), [1], "cannot be read", None),
        (partition([1, 2], least=1), [1], None, None),
        (partition([1, 2, 3]), [1, 2], None, "cannot be written"),
        (partition([1, 2, 3]), [1, 2, 3], None, "cannot be read or written"),
        (partition([2, 1], [1], adding=[2], removing=[1]), [1], "cannot be read or written", None),
        (partition([2, 1], [1], adding=[2], removing=[1]), [2], None, None),
        (partition([1, 2, 3], []), [1], None, None),
        (partition([1, 2], least=None), [1], None, None),
    ],
    ids=[
        "enough replicas are left",
        "one that is out of sync is taken",
        "one is out of sync already",
        "the last in sync",
        "the last in sync, which sufficed",
        "one in sync suffices",
        "one replica",
        "one replica, elsewhere",
        "as many replicas as must be in sync",
        "two replicas, one out of sync",
        "two replicas, one suffices",
        "a rack",
        "all brokers",
        "it moves away",
        "it has not come yet",
        "no leader",
        "a release that does not say how many must be in sync",
    ],
)
def test_what_a_restart_takes(
    ahead: ModuleType, found: dict[str, Any], stopping: list[int], refused: str | None, unspared: str | None
) -> None:
    """A restart that would stop a partition is refused while another replica is out of sync.

    If the partition stops in any order of restarts, it is listed apart and not refused.
    """
    quorum = {"leader": 9, "voters": [9], "silent_voters": []}
    outlook = ahead.look_ahead(three(quorum=quorum), [found], stopping)
    assert outlook["refused"] == ({"t-0": refused} if refused else {})
    assert outlook["unspared"] == ({"t-0": unspared} if unspared else {})


def test_a_silent_voter_is_as_good_as_out_of_sync(ahead: ModuleType) -> None:
    """A broker is in the ISR, but its controller is silent. It counts as out of sync before its session ends."""
    quorum = {"leader": 1, "voters": [1, 2, 3, 4, 5], "silent_voters": [2]}
    outlook = ahead.look_ahead(three(quorum=quorum), [partition([1, 2, 3])], [3])
    assert outlook["refused"] == {"t-0": "cannot be written"}


@pytest.mark.parametrize(
    ("quorum", "refused", "unspared"),
    [
        ({"leader": 1, "voters": [1, 2, 3], "silent_voters": []}, None, None),
        ({"leader": 1, "voters": [1, 2, 3], "silent_voters": [2]}, "these are silent: 2", None),
        (
            {"leader": 1, "voters": [1], "silent_voters": []},
            None,
            "the quorum of 1 controllers has no majority",
        ),
        ({"leader": None, "voters": [1, 2, 3], "silent_voters": []}, "has no leader", None),
        (None, "has no leader", None),
    ],
)
def test_what_a_restart_takes_from_the_quorum(
    ahead: ModuleType, quorum: dict[str, Any] | None, refused: str | None, unspared: str | None
) -> None:
    """A restart is refused if the voters would lose their majority, unless the node is the only voter."""
    waits, lost = ahead.quorum_losses(three(quorum=quorum), {1})
    assert (waits is None) is (refused is None)
    assert (refused or "") in (waits or "")
    assert lost == unspared


@pytest.mark.parametrize(
    ("words", "accepted"),
    [([], False), (["all"], True), (["a-b"], True), (["a-b-3"], True), (["a"], False), (["quorum"], False)],
)
def test_the_operators_word(ahead: ModuleType, words: list[str], accepted: bool) -> None:
    """The operator may accept the loss of a partition, of a topic, or of everything. A prefix of a name accepts
    nothing."""
    assert ahead.accepted_by("a-b-3", words) is accepted
    assert ahead.accepted_by("quorum", ["quorum"])


def test_nodes_that_are_down_wait_for_nothing(gate: ModuleType) -> None:
    """A node that is down may start at once, even if the cluster is silent. Its start takes nothing from any
    partition."""
    silent = {"stopping": [], "starting": [2], "accept": []}
    assert gate.held_up(None, [], "no answer", silent) == {}
    running = {"stopping": [1], "starting": [], "accept": []}
    assert list(gate.held_up(None, [], "no answer", running)) == ["quorum"]
    assert gate.held_up(None, [], "no answer", {**running, "accept": ["all"]}) == {}
    # A node that has just failed may be down. Its partitions count as soon as the cluster answers.
    perhaps = {"stopping": [1], "starting": [1], "accept": []}
    assert gate.held_up(None, [], "no answer", perhaps) == {}
    assert gate.held_up(three(quorum=None), [partition([1, 2, 3], [1, 2])], "", perhaps) == {
        "t-0": "cannot be written"
    }


def test_what_cannot_be_spared_is_counted(gate: ModuleType) -> None:
    """For each restart that stops partitions, a line says how many, names the first ones, and says what they lose."""
    single = [partition([2], topic="single", partition=index) for index in range(5)]
    (line,) = gate.steps_lines(three(), single, [[1], [2], [3]])
    assert line == (
        "while node 2 restarts: 5 partitions cannot be read or written: single-0, single-1, single-2, ..."
    )


def test_a_cluster_as_before(ahead: ModuleType) -> None:
    """After a restart, the roll-out waits only for what was there before. The restarted nodes must be in sync again."""
    down = three(
        brokers=[{"broker": 1, "online": True}, {"broker": 2, "online": False}, {"broker": 3, "online": True}]
    )
    lagging = [partition([1, 2, 3], [1], topic="a"), partition([2], [], topic="b")]
    lacked = ahead.lacking_before(down, lagging, [1])
    assert lacked == {"down": [2], "silent": [], "behind": [["a-0", 3]], "offline": ["b-0"]}
    assert ahead.lacking_since(down, lagging, lacked) == ([], 0)
    now = [partition([1, 2, 3], [3], topic="a"), partition([2], [], topic="b")]
    assert ahead.lacking_since(down, now, lacked) == (["partitions are not fully replicated: a-0"], 1)
    assert ahead.lacking_since(down, [partition([1, 3], [])], lacked) == (
        ["partitions have no leader: t-0"],
        1,
    )
    lost = three(brokers=[{"broker": node, "online": node == 1} for node in (1, 2, 3)])
    assert ahead.lacking_since(lost, lagging, lacked) == (["brokers are not online: 3"], 1)


def test_no_wait_for_a_partition_that_an_operator_must_choose_for(ahead: ModuleType) -> None:
    """A leaderless partition is waited for only if a replica with all of its records is left. Else the operator must
    choose."""
    lacked = ahead.lacking_before(three(), [partition([2])], [2])
    for complete, last, waits in (([], None, False), ([2], None, True), ([], 2, True)):
        why = {"complete_replicas": complete, "last_leader": last}
        found, count = ahead.lacking_since(three(), [partition([2], [], leaderless=why)], lacked)
        assert (found, count) == ((["partitions have no leader: t-0"], 1) if waits else ([], 0))


def test_what_a_node_that_was_down_is_waited_for(ahead: ModuleType) -> None:
    """A node is down and then started by the roll-out. The partitions that lacked because of it are waited for."""
    down = three(brokers=[{"broker": node, "online": node != 2} for node in (1, 2, 3)])
    lacked = ahead.lacking_before(down, [partition([2], [])], [2])
    assert lacked == {"down": [], "silent": [], "behind": [], "offline": []}
    assert ahead.lacking_since(three(), [partition([2], [])], lacked)[0] == ["partitions have no leader: t-0"]
    away = three(replicas_on_disks_away=[{"broker": 2, "partitions": ["t-0"]}])
    lacked = ahead.lacking_before(away, [partition([1, 2, 3], [1, 3])], [2])
    assert ahead.lacking_since(three(), [partition([1, 2, 3], [1, 3])], lacked) == ([], 0)


@pytest.mark.parametrize(
    ("shown", "runs"),
    [
        ("ActiveState=active\nNRestarts=0\nExecMainStartTimestampMonotonic=99000000", True),
        ("ActiveState=active\nNRestarts=4\nExecMainStartTimestampMonotonic=99000000", False),
        ("ActiveState=active\nNRestarts=4\nExecMainStartTimestampMonotonic=9000000", True),
        ("ActiveState=activating\nNRestarts=4\nExecMainStartTimestampMonotonic=0", False),
        ("ActiveState=failed\nNRestarts=5", False),
        ("ActiveState=inactive\nNRestarts=0", False),
    ],
    ids=["runs", "between two failures", "failed long ago", "about to start", "given up", "stopped"],
)
def test_a_crash_loop_is_not_running(facts: ModuleType, shown: str, runs: bool) -> None:
    """A node in a crash loop counts as down, even if systemd has started it again a moment ago."""
    assert facts.runs(shown, 100.0) is runs


def host(name: str, **values: Any) -> dict[str, Any]:
    """Make a host as `roll_out` gets it. It runs one voting node, whose id is the last digit of the name."""
    node = int(name[-1])
    return {
        "host": name,
        "rack": name,
        "voters": [node],
        "differs": True,
        "down": [],
        "running": [node],
        **values,
    }


def test_the_order_of_hosts(order: ModuleType) -> None:
    """Hosts with a node that is down come first, and the active controller's host last. Unchanged hosts are left
    out."""
    hosts = [host("h1"), host("h2", running=[], down=[2]), host("h3"), host("h4", differs=False, running=[])]
    plan = order.roll_out(hosts, leader=1)
    assert plan == {"down": ["h2"], "order": ["h3", "h1"], "batches": [1, 1], "steps": [[3], [1]]}
    several = [host("h1", running=[11, 12], down=[13])]
    assert order.roll_out(several)["steps"] == [[11], [12]]
    assert order.roll_out(several)["down"] == ["h1"]
    # This host lacks only the mark that it belongs to the cluster.
    assert order.roll_out([host("h1", running=[])])["order"] == ["h1"]


def test_a_rack_at_a_time(order: ModuleType) -> None:
    """Hosts of a rack restart together, but at most one voter at a time. The active controller's host is the very
    last."""
    hosts = [
        host("h1", rack="a"),
        host("h2", rack="a", voters=[]),
        host("h3", rack="a"),
        host("h4", rack="b", voters=[]),
        host("h5", rack="b"),
        host("h6", rack="c", voters=[]),
        host("h7", rack="c", voters=[]),
    ]
    plan = order.roll_out(hosts, leader=1, by_rack=True)
    assert plan["order"] == ["h4", "h5", "h6", "h7", "h2", "h3", "h1"]
    assert plan["batches"] == [2, 2, 2, 1]
    assert plan["steps"] == [[4, 5], [6, 7], [2, 3], [1]]
    assert order.roll_out(hosts, leader=5, by_rack=True)["batches"] == [2, 1, 2, 1, 1]


def test_nodes_that_a_change_touches(order: ModuleType) -> None:
    """A file of one node restarts only this node. The unit and the release restart all running nodes of the host."""
    nodes = [{"id": each, "active": each != 12, "stale": False, "unformatted": []} for each in (11, 12, 1)]
    of = order.touched
    assert of({"nodes": nodes}, [], False) == {"down": [12], "running": []}
    assert of({"nodes": nodes}, ["/etc/odradek/node-1.properties"], False)["running"] == [1]
    assert of({"nodes": nodes}, ["/etc/systemd/system/odradek@11.service.d/node.conf"], False)["running"] == [
        11
    ]
    assert of({"nodes": nodes}, ["/etc/systemd/system/odradek@.service"], False)["running"] == [11, 1]
    assert of({"nodes": nodes}, [], True) == {"down": [12], "running": [11, 1]}


def test_the_state_before_the_first_run(before: ModuleType, facts: ModuleType, tmp_path: Path) -> None:
    """The first run of a roll-out keeps the state before it. Later runs leave the kept state alone, and it can be
    restored."""
    old, new, keep, root = (tmp_path / name for name in ("old", "new", "keep", "root"))
    root.mkdir()
    (root / "current").symlink_to("versions/1")
    old.write_text("first\n")
    paths = [str(old), str(new)]
    assert facts._before(str(keep)) is None
    assert before.keep(str(keep), paths, str(root)) == paths
    for text, release in (("second\n", "versions/2"), ("third\n", "versions/3")):
        old.write_text(text)
        new.write_text(text)
        before._switch(str(root / "current"), release)
        assert before.keep(str(keep), paths, str(root)) == []
    kept = facts._before(str(keep))
    assert (kept["current"], kept["previous"], sorted(kept["paths"])) == ("1", None, sorted(paths))
    assert sorted(before.restore(str(keep), str(root))) == sorted([*paths, str(root / "current")])
    assert old.read_text() == "first\n"
    assert not new.exists()
    assert os.readlink(root / "current") == "versions/1"
    assert facts._before(str(keep))["paths"] == []
    assert before.restore(str(keep), str(root)) == []


def test_an_interrupted_keeping_is_begun_anew(before: ModuleType, tmp_path: Path) -> None:
    """Kept copies without a list of releases may be of any age, so they are made again."""
    path, keep = tmp_path / "file", tmp_path / "keep"
    path.write_text("now\n")
    keep.mkdir()
    (keep / str(path).replace("/", "%")).write_text("ages ago\n")
    assert before.restore(str(keep), str(tmp_path)) == []
    assert before.keep(str(keep), [str(path)], str(tmp_path)) == [str(path)]
    path.write_text("changed\n")
    assert before.restore(str(keep), str(tmp_path)) == [str(path)]
    assert path.read_text() == "now\n"
    assert json.loads((keep / "releases.json").read_text()) == {"current": None, "previous": None}


def test_a_long_wait_says_each_minute_what_it_waits_for(waiting: ModuleType) -> None:
    """During a long wait, a line each minute says what the cluster lacks, how much is left, and how long that may
    take."""
    clock, said, calls = [0.0], [], []
    left = iter((40, 30, 20, 10))

    def call(seconds: int) -> dict[str, Any]:
        calls.append(seconds)
        clock[0] += seconds
        return {
            "still_waiting": True,
            "failed": True,
            "sentence": "it lacks t-0",
            "left": next(left),
            "remedy": "Look.",
        }

    result = waiting.wait(call, said.append, 150, now=lambda: clock[0], clock=lambda: 0.0)
    assert calls == [60, 60, 30]
    assert len(said) == 2
    assert all("it lacks t-0" in line for line in said)
    assert "; 40 left:" in said[0]
    assert "; 30 left, about 3 min at this pace:" in said[1]
    assert result["msg"] == "Stopped after 150 s: it lacks t-0. Look."
    assert "still_waiting" not in result
    assert waiting.wait(lambda _: {"waited_seconds": 1}, said.append, 60, now=lambda: 0.0) == {
        "waited_seconds": 0.0
    }


def test_a_broker_that_hangs_is_passed_over(tmp_path: Path) -> None:
    """If all addresses together give no answer, they are asked one by one. The first error is reported."""
    asking = plugin("module_utils", "asking")
    command = tmp_path / "odradek"
    command.write_text(
        '#!/bin/sh\ncase "$*" in *"-server b:2") echo {} ;; *) echo "odradek: no answer from $7" >&2 ;; esac\n'
    )
    command.chmod(0o755)
    assert asking.ask(str(command), "a:1,b:2", "cluster", "status") == ({}, "")
    assert asking.ask(str(command), "a:1,c:3", "cluster", "status") == (None, "no answer from a:1,c:3")


def test_a_broker_that_hangs_holds_no_question_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first broker is silent, the others are asked. The next question goes to the broker that has
    answered."""
    asking = plugin("module_utils", "asking")
    monkeypatch.setattr(asking, "_PATIENCE_SECONDS", 0.1)
    silent, asked = tmp_path / "silent", tmp_path / "asked"
    command = tmp_path / "odradek"
    command.write_text(
        f"""#!/bin/sh
echo "$*" | sed 's/.*-server //' >> {asked}
case "$*" in
*"-server b:2") until [ "$(cat {silent} | wc -l)" = 2 ]; do sleep 0.05; done
  kill -0 $(cat {silent}) && echo '{{"beside": true}}' ;;
*) echo $$ >> {silent}; exec sleep 600 ;;
esac
"""
    )
    command.chmod(0o755)
    assert asking.ask(str(command), "a:1,b:2", "cluster", "status") == ({"beside": True}, "")
    assert sorted(asked.read_text().split()) == ["a:1", "a:1,b:2", "b:2"]
    for number in silent.read_text().split():
        assert not Path("/proc", number).exists(), "a question is left behind"
    silent.write_text(f"{os.getpid()}\n" * 2)
    monkeypatch.setattr(asking, "_PATIENCE_SECONDS", 600.0)
    assert asking.ask(str(command), "a:1,b:2", "cluster", "status") == ({"beside": True}, "")
    assert asked.read_text().split()[3:] == ["b:2"]


def test_a_command_that_is_missing(tmp_path: Path) -> None:
    """If the command is not installed, the complaint says so."""
    asking = plugin("module_utils", "asking")
    found, complaint = asking.ask(str(tmp_path / "odradek"), "a:1", "cluster", "status")
    assert found is None
    assert "No such file" in complaint


def test_a_wait_names_its_reasons(gate: ModuleType) -> None:
    """The reasons of a wait include brokers that are down and directories in trouble."""
    full = {"broker": 2, "path": "/srv/odradek/b/node-2", "trouble": "full", "since_ms": 0}
    down = [{"broker": 1, "online": True}, {"broker": 2, "online": False}]
    assert gate.reasons(status(brokers=down, troubled_directories=[full])) == [
        "brokers are not online: 2",
        "/srv/odradek/b/node-2 of broker 2 is in trouble (full)",
    ]
    assert gate.reasons(status()) == []
    assert gate.reasons(None) == []


@pytest.mark.parametrize(
    ("state", "words"), [("failed", "node 3 stops: its log is damaged"), ("activating", "")]
)
def test_the_last_words_of_a_node(
    facts: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str, words: str
) -> None:
    """If a node has failed for good, its state includes the error sentence from its journal."""
    for name, text in (
        ("systemctl", state),
        ("journalctl", "{}\\nodradek: node 3 stops: its log is damaged\\nended"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\nprintf '{text}\\n'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert facts.last_words("odradek@3.service") == words
