"""A run with `--check` reports the changes that a real run would make, and the parts that it cannot foresee."""

from __future__ import annotations

from typing import Any

from tests.deploy.plugins import plugin

plans = plugin("filter", "foreseen")
PLAN = {"voters": [1, 2, 4], "nodes": []}


def values(**changes: Any) -> dict[str, Any]:
    """Return the variables of a host on which nothing differs."""
    node = {"id": 1, "active": True, "stale": False, "unmounted": [], "unformatted": []}
    state = {"founded": True, "current": "0.1.0", "releases": ["0.1.0"], "nodes": [node]}
    return {
        "odradek_release": "0.1.0",
        "odradek_host_state": state,
        "node_differences": {"paths": []},
        "node_touched": {"down": [], "running": []},
        **changes,
    }


def test_nothing_differs() -> None:
    """The report about a host that matches the inventory is empty."""
    assert plans.foreseen(values(), PLAN) == {"differences": [], "unforeseen": []}


def test_a_file_and_a_release() -> None:
    """If a file differs and the release is another one, both changes and the node's restart are reported."""
    found = plans.foreseen(
        values(
            odradek_release="0.1.1",
            node_differences={"paths": ["/etc/odradek/x"]},
            node_touched={"down": [], "running": [1]},
        ),
        PLAN,
    )
    assert found["differences"] == [
        "release 0.1.1 would be installed",
        "release 0.1.1 would run in place of 0.1.0",
        "/etc/odradek/x would be written",
        "node 1 would be restarted",
    ]
    assert "release 0.1.1 is not installed" in found["unforeseen"][0]


def test_a_bare_host() -> None:
    """A bare host would get everything. Changes that depend on its disks or on the release cannot be foreseen."""
    node = {"id": 1, "active": False, "stale": True, "unmounted": ["a"], "unformatted": ["a"]}
    state = {"founded": False, "current": None, "releases": [], "nodes": [node]}
    found = plans.foreseen(
        values(
            odradek_host_state=state,
            host_installed={"changed": True},
            host_user_made={"changed": True},
            host_written={"paths": ["/etc/sysctl.d/60-odradek.conf"]},
            disks_found={"disks": [{"name": "a", "device": "/dev/sda", "formatted": True, "mounted": False}]},
        ),
        PLAN,
    )
    assert found["differences"] == [
        "packages would be installed",
        "the nodes' user would be made",
        "/etc/sysctl.d/60-odradek.conf would be written",
        "disk a (/dev/sda) would be formatted",
        "release 0.1.0 would be installed",
        "release 0.1.0 would run in place of none",
        "node 1 would begin with empty directories on a",
        "node 1 would be started",
    ]
    assert len(found["unforeseen"]) == 3


def test_a_node_that_is_down() -> None:
    """A node that is down would be started, even if all of its files match."""
    told = values()
    told["odradek_host_state"]["nodes"][0]["active"] = False
    assert plans.foreseen(told, PLAN)["differences"] == ["node 1 would be started"]


def test_votes() -> None:
    """Nodes would get and lose votes as the inventory says. Without an answer of the cluster, votes are left out."""
    live = {"status": {"quorum": {"voters": [1, 2, 3]}}}
    assert plans.foreseen_votes(PLAN, live) == ["node 4 would get a vote", "node 3 would lose its vote"]
    assert plans.foreseen_votes(PLAN, {}) == []


def test_a_host_that_was_not_looked_at() -> None:
    """The report about an unreachable host names no differences."""
    assert plans.foreseen({"odradek_host_state": {"unreachable": True}}, PLAN)["differences"] == []
