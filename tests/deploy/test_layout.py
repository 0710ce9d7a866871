"""The plan of a cluster from its inventory: addresses, votes and disks, or sentences about mistakes."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.wire.uuid_text import uuid_from_text
from tests.deploy.plugins import plugin

layout = plugin("filter", "layout").layout
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"


def inventory(count: int = 3, voters: int = 3) -> dict[str, dict[str, Any]]:
    """Return an inventory of hosts with two disks each."""
    return {
        f"host{number}": {
            "ansible_host": f"192.0.2.{number}",
            "odradek_cluster_id": CLUSTER_ID,
            "odradek_node_id": number,
            "odradek_voter": number <= voters,
            "odradek_disks": [{"name": "a", "device": "/dev/sda"}, {"name": "b", "device": "/dev/sdb"}],
        }
        for number in range(1, count + 1)
    }


def test_three_hosts() -> None:
    """The plan of three hosts with one node each has all addresses, and all voters with the ids of their
    directories."""
    plan = layout(inventory())
    assert plan["problems"] == []
    assert plan["bootstrap"] == "192.0.2.1:9092,192.0.2.2:9092,192.0.2.3:9092"
    assert plan["controller_bootstrap"] == "192.0.2.1:9093,192.0.2.2:9093,192.0.2.3:9093"
    assert plan["brokers"] == plan["voters"] == [1, 2, 3]
    first, *others = plan["initial_controllers"].split(",")
    assert first.startswith("1@192.0.2.1:9093:")
    ids = {uuid_from_text(each.rpartition(":")[2]) for each in (first, *others)}
    assert len(ids) == 3


def test_a_host_that_joins_changes_nothing_for_the_others() -> None:
    """A new host without a vote leaves the files of the present hosts unchanged, so their nodes keep running."""
    before, after = layout(inventory()), layout(inventory(4))
    assert after["problems"] == []
    assert after["nodes"][:3] == before["nodes"]
    assert after["controller_bootstrap"] == before["controller_bootstrap"]


def test_a_node_for_each_disk() -> None:
    """Several nodes on one host have separate ports and disks. Their rack is the host's name."""
    told = inventory()
    for number, values in enumerate(told.values(), 1):
        values["odradek_nodes"] = [
            {"id": number * 10, "disks": ["a"], "cpus": "0"},
            {"id": number * 10 + 1, "disks": ["b"], "cpus": "1"},
        ]
    plan = layout(told)
    assert plan["problems"] == []
    assert [(n["id"], n["client_port"], n["disks"], n["rack"], n["voter"], n["cpus"]) for n in plan["nodes"]][
        :2
    ] == [
        (10, 9092, ["a"], "host1", True, "0"),
        (11, 9102, ["b"], "host1", False, "1"),
    ]


def test_replicas_would_share_a_host() -> None:
    """Replicas are spread over racks. If there are too few racks and a host has two nodes, the plan is refused."""
    told = inventory()
    for number, values in enumerate(told.values(), 1):
        values["odradek_nodes"] = [
            {"id": number * 10, "disks": ["a"]},
            {"id": number * 10 + 1, "disks": ["b"]},
        ]
        values["odradek_rack"] = "r1" if number < 3 else "r2"
    assert "replicas would share a host" in " ".join(layout(told)["problems"])


@pytest.mark.parametrize(
    ("host", "values", "sentence"),
    [
        ("host2", {"odradek_node_id": 1}, "Node id 1 is given 2 times (host1 and host2)"),
        ("host2", {"odradek_node_id": None}, "host2: a node without an id"),
        ("host2", {"odradek_voter": False}, "2 nodes vote: a majority needs an odd number"),
        ("host2", {"odradek_cluster_id": "x"}, "odradek_cluster_id must be one and the same"),
        ("host2", {"odradek_disks": []}, "host2 has no disks"),
        ("host2", {"odradek_disks": "all"}, "host2: odradek_disks is 'all': list its disks"),
        ("host2", {"odradek_disks": [{"name": "A!", "device": "/dev/sda"}]}, "disk name 'A!'"),
        ("host2", {"odradek_roles": "broker"}, "a node with the role broker cannot vote"),
        ("host2", {"odradek_roles": "king"}, "odradek_roles is 'king'"),
        ("host2", {"odradek_nodes": [{"id": 2, "disks": ["c"]}]}, "node 2 names disk c"),
        (
            "host2",
            {"odradek_nodes": [{"id": 2}, {"id": 4}]},
            "disk a is shared by 2 nodes: give each node disks of its own",
        ),
    ],
)
def test_bad_input(host: str, values: dict[str, Any], sentence: str) -> None:
    """Each mistake gives a sentence that says what to do, before any host is changed."""
    told = inventory()
    told[host].update(values)
    assert sentence in " ".join(layout(told)["problems"])


@pytest.mark.parametrize(
    "text", ["my-cluster", "hQaR/HGjTCKXzoMZUc21jA", "cDZEekk4T3hTNGVlNzB3LUtUbkxaQQo=", 17]
)
def test_a_cluster_id_is_any_text(text: str | int) -> None:
    """A cluster that comes from Apache Kafka keeps its id, whatever text it is."""
    told = inventory()
    for values in told.values():
        values["odradek_cluster_id"] = text
    plan = layout(told)
    assert plan["problems"] == []
    assert plan["cluster_id"] == str(text)


@pytest.mark.parametrize("text", ["", " ", "a\nb"])
def test_a_cluster_id_that_files_cannot_have(text: str) -> None:
    """A cluster id that is empty, blank or several lines long is refused."""
    told = inventory()
    for values in told.values():
        values["odradek_cluster_id"] = text
    assert "odradek_cluster_id must be one and the same text" in " ".join(layout(told)["problems"])


def test_disks_that_are_not_known_yet() -> None:
    """The disks of a host may still have to be discovered. The inventory is valid all the same."""
    told = inventory()
    told["host2"]["odradek_disks"] = "discover"
    plan = layout(told)
    assert plan["problems"] == []
    assert [node["disks"] for node in plan["nodes"]] == [["a", "b"], [], ["a", "b"]]


def test_nobody_votes() -> None:
    """An inventory without a quorum is refused."""
    assert "0 nodes vote" in " ".join(layout(inventory(voters=0))["problems"])


@pytest.mark.parametrize(
    ("stage", "clients", "controllers"),
    [("plaintext", 9092, 9093), ("beside", 9092, 9093), ("within", 9096, 9097), ("only", 9096, 9097)],
)
def test_stages_of_security(stage: str, clients: int, controllers: int) -> None:
    """Once nodes reach each other by their secured listeners, the operator's commands use these listeners, too."""
    told = inventory()
    for values in told.values():
        values["odradek_security"] = stage
    plan = layout(told)
    assert plan["problems"] == []
    assert plan["bootstrap"].split(",")[0] == f"192.0.2.1:{clients}"
    assert plan["controller_bootstrap"].split(",")[0] == f"192.0.2.1:{controllers}"
    assert bool(plan["environment"]) is (stage in ("within", "only"))


def test_one_stage_for_all() -> None:
    """Hosts with different stages of security, or with an unknown stage, are refused."""
    told = inventory()
    told["host1"]["odradek_security"] = "only"
    assert "must be the same on all hosts" in layout(told)["problems"][0]
    for values in told.values():
        values["odradek_security"] = "tls"
    assert "one of plaintext, beside, within, only" in layout(told)["problems"][0]
