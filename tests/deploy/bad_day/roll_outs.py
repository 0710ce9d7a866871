"""Roll-outs that are interrupted, refused, or meet a node that is down."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.deploy.bad_day.secrets import KEY
from tests.deploy.life import Life, is_whole, refused
from tests.deploy.playbooks import Outcome
from tests.deploy.releases import BROKEN, NARROW, OLD

_STARTED = "39f53479d3a045ac8e11786248231fbf"
_STOPPING = "de5b426a63be47a7b6ac3eaac82e2f6f"
_EXITED = "98e322203f7a4ed290d09fe03c09fe15"
"""The ids of systemd's journal messages: a unit was started, a unit is stopping, or its process has ended."""
_SOON = {"node_health_seconds": "10"}
_SECONDS_MAX = 300
_ODRADEK = "/opt/odradek/current/bin/odradek"


def most_down_at_once(events: list[tuple[float, str, bool]]) -> int:
    """Return the largest number of nodes that were down at once.

    Each event is a moment, a host, and whether the host's node went down or came up.
    """
    down: set[str] = set()
    most = 0
    for _, host, went_down in sorted(events):
        (down.add if went_down else down.discard)(host)
        most = max(most, len(down))
    return most


@contextmanager
def watched(life: Life, most: int) -> Iterator[None]:
    """Check that no more than `most` nodes are down at once during the block, by systemd's messages in the hosts'
    journals."""
    begun = time.time()
    yield
    events = []
    for name in life.told:
        asked = (
            f"journalctl --output json --since @{begun:.3f} UNIT=odradek@{life.hosts[name].number}.service"
        )
        for line in (life.hosts.ssh(name, asked) or "").splitlines():
            entry = json.loads(line)
            if entry.get("MESSAGE_ID") in (_STARTED, _STOPPING, _EXITED):
                moment = int(entry["__REALTIME_TIMESTAMP"]) / 1e6
                events.append((moment, name, entry["MESSAGE_ID"] != _STARTED))
    found = most_down_at_once(events)
    assert found <= most, f"{found} nodes were down at once: {sorted(events)}"


def restarted(outcome: Outcome) -> list[str]:
    """Return the hosts whose nodes a playbook started or restarted, in order."""
    lines = [line for line in outcome.output.splitlines() if "/restart.yml for " in line]
    return [name for line in lines for name in line.split(" for ")[1].split(" => ")[0].split(", ")]


def starts(life: Life) -> dict[str, str]:
    """Return the start time of each host's node."""
    return {name: life.started(name) for name in life.told}


def properties(life: Life, name: str) -> str:
    """Read the properties file of a host's node."""
    return life.hosts.ssh(name, f"cat /etc/odradek/node-{life.hosts[name].number}.properties") or ""


def keeps_before(life: Life, name: str) -> bool:
    """True if a host keeps the state before an unfinished roll-out."""
    return life.hosts.ssh(name, "test -e /var/lib/odradek-before/releases.json", check=False) is not None


def odradek(life: Life, *words: str) -> str:
    """Run an odradek command on the first host, against the cluster."""
    return life.hosts.ssh("stork", f"{_ODRADEK} {' '.join(words)} --bootstrap-server {life.bootstrap}") or ""


def settings(life: Life, **values: object) -> None:
    """Write settings for all nodes into the inventory. A planted secret among the old settings stays."""
    variables = life.playbooks.inventory["vars"]
    planted = {key: value for key, value in variables["odradek_settings"].items() if key == KEY}
    variables["odradek_settings"] = planted | {key.replace("_", "."): value for key, value in values.items()}


def a_gate_that_says_no(life: Life) -> None:
    """Refuse a restart that would stop writes, since another node hangs. Files and processes stay as they are.

    The roll-out would restart the hung node second, and the host of the active controller last.
    """
    leader = life.status()["controller"]
    first, hung = [name for name in life.told if life.hosts[name].number != leader]
    number = life.hosts[hung].number
    unit = f"odradek@{number}"
    with life.step("a node hangs: the roll-out touches nothing"), watched(life, 0):
        before, text = starts(life), properties(life, first)
        life.hosts.ssh(hung, f"systemctl kill --signal=STOP {unit}")
        try:
            life.wait_until(
                lambda status: any(b["broker"] == number and not b["online"] for b in status["brokers"]),
                f"{hung} is missed",
            )
            settings(life, log_retention_hours=101)
            said = life.playbooks.run("reconfigure", fails=True, **_SOON)
            refused(said, "cannot be written", "odradek_accept=", "no process was touched")
            assert f"brokers are not online: {number}" in " ".join(said.output.split())
            assert starts(life) == before
            assert properties(life, first) == text
        finally:
            life.hosts.ssh(hung, f"systemctl kill --signal=CONT {unit}")
        life.wait_until(is_whole, "a whole cluster")
        settings(life)


def a_setting_that_fails(life: Life) -> None:
    """Give a node a setting with which it does not start. It gets its old settings back, and the other nodes stay
    up."""
    address = life.hosts["crane"].address
    with life.step("a setting with which a node does not start: put back"), watched(life, 1):
        before, text = starts(life), properties(life, "crane")
        # Only root may listen on this port.
        life.told["crane"]["odradek_host_settings"] = {"odradek.metrics.listener": f"{address}:23"}
        outcome = life.playbooks.run("reconfigure", fails=True, node_health_seconds="60")
        said = " ".join(outcome.output.split())
        assert f"was put back to release {OLD}" in said, outcome.output[-3000:]
        assert restarted(outcome) == ["crane"], outcome.output[-3000:]
        after = starts(life)
        assert {name for name in after if after[name] != before[name]} == {"crane"}
        assert properties(life, "crane") == text
        del life.told["crane"]["odradek_host_settings"]
        life.wait_until(is_whole, "a whole cluster")


def killed_in_the_middle(life: Life) -> None:
    """Kill the playbook that rolls out a bad release. The next run fails, too, and still restores the first state."""
    with life.step("kill -9 in the roll-out of a release that does not start"), watched(life, 1):
        playbook = life.playbooks.begin("upgrade", odradek_release=BROKEN)
        deadline = time.monotonic() + _SECONDS_MAX
        try:
            while not (hit := [name for name in life.told if _fails_with(life, name, BROKEN)]):
                assert playbook.poll() is None, "the playbook ended before it was killed"
                assert time.monotonic() < deadline, "no node was restarted with the release"
                time.sleep(0.3)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(playbook.pid, signal.SIGKILL)
            playbook.wait()
        shown = " ".join(life.playbooks.run("status").output.split())
        assert f"in a roll-out that is not whole yet, before it: release {OLD}" in shown, shown[-3000:]
        assert f"release {OLD} (" in shown, "its digest is shown"
        outcome = life.playbooks.run("upgrade", fails=True, odradek_release=BROKEN, node_health_seconds="60")
        said = " ".join(outcome.output.split())
        assert f"was put back to release {OLD}" in said, outcome.output[-3000:]
        assert restarted(outcome) == hit, outcome.output[-3000:]
        assert life.versions() == {OLD}
        life.wait_until(is_whole, "a whole cluster")
        # The next complete roll-out removes the kept state.
        assert keeps_before(life, hit[0])


def _fails_with(life: Life, name: str, release: str) -> bool:
    """True if `release` is the current release of a host, and its node has failed with it."""
    unit = f"odradek@{life.hosts[name].number}"
    asked = f"readlink /opt/odradek/current; systemctl show --property=NRestarts --value {unit}"
    link, restarts = (life.hosts.ssh(name, asked) or "- 0").split()
    return link.endswith(f"/{release}") and int(restarts) > 0


def a_node_that_is_down(life: Life) -> None:
    """Roll out while a node is down that has the only replicas of a topic. It is started first, before the other
    nodes."""
    number = life.hosts["heron"].number
    with life.step("a node is down, with the only replicas of a topic: started first"), watched(life, 1):
        odradek(life, "topic", "create", "single", "--partitions", "6", "--replication-factor", "1")
        life.hosts.ssh("heron", f"systemctl stop odradek@{number}")
        before = starts(life)
        assert restarted(life.playbooks.run("reconfigure")) == ["heron"]
        assert not any(keeps_before(life, name) for name in life.told)
        after = starts(life)
        assert {name for name in after if after[name] != before[name]} == {"heron"}
        assert is_whole(life.status())
        # Now it is in a crash loop, and all nodes change. It comes first again; unavoidable losses are counted.
        path = f"/etc/odradek/node-{number}.properties"
        life.hosts.ssh("heron", f"echo odradek.metrics.listener={life.hosts['heron'].address}:23 >> {path}")
        life.hosts.ssh("heron", f"systemctl restart odradek@{number}")
        settings(life, log_retention_hours=102)
        strict = life.playbooks.run("reconfigure", "--check", fails=True, odradek_strict="true").output
        assert "Refused by odradek_strict" in strict, strict[-3000:]
        outcome = life.playbooks.run("reconfigure")
        assert restarted(outcome)[0] == "heron", outcome.output[-3000:]
        assert sorted(restarted(outcome)) == sorted(life.told)
        assert "No order of restarts avoids this: while node" in outcome.output
        assert all("log.retention.hours=102" in properties(life, name) for name in life.told)
        assert is_whole(life.status())
        listed = json.loads(odradek(life, "partition", "list", "--json"))["partitions"]
        assert all(each["leader"] == each["replicas"][0] for each in listed), "preferred replicas lead"
        odradek(life, "topic", "delete", "single")


def back_to_the_state_before(life: Life) -> None:
    """Undo a canary with `rollback`. Refuse a release that lacks the cluster's feature levels."""
    with life.step("a canary, undone; a release of fewer features refused"), watched(life, 1):
        before, text = starts(life), properties(life, "stork")
        settings(life, log_retention_hours=103)
        life.playbooks.run("reconfigure", odradek_host="stork")
        assert "log.retention.hours=103" in properties(life, "stork")
        assert keeps_before(life, "stork")
        life.playbooks.run("rollback")
        assert properties(life, "stork") == text
        after = starts(life)
        assert {name for name in after if after[name] != before[name]} == {"stork"}
        assert not keeps_before(life, "stork")
        settings(life, log_retention_hours=102)
        said = " ".join(life.playbooks.run("rollback", fails=True, odradek_to=NARROW).output.split())
        assert "transaction.version is at level 2, the release supports 0 to 1" in said, said[-3000:]
        assert starts(life) == after


STEPS: tuple[Callable[[Life], None], ...] = (
    a_gate_that_says_no,
    a_setting_that_fails,
    killed_in_the_middle,
    a_node_that_is_down,
    back_to_the_state_before,
)
