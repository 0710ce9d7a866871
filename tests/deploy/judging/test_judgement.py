"""Mistakes in an inventory, on its hosts and in its cluster. Each gives a sentence, and all are reported at once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy.plugins import plugin

layout = plugin("filter", "layout").layout
judgement = plugin("filter", "judgement")
verdicts = plugin("filter", "verdict")
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
WHOLE = {"converges": True, "prepares": True, "host": "", "check": False, "fails_on_difference": False}


def inventory() -> dict[str, dict[str, Any]]:
    """Return three hosts with two disks each, as an operator writes them."""
    return {
        name: {
            "ansible_host": f"192.0.2.{number}",
            "odradek_cluster_id": CLUSTER_ID,
            "odradek_release": "0.1.0",
            "odradek_node_id": number,
            "odradek_voter": True,
            "odradek_settings": {"log.retention.hours": 168},
            "odradek_disks": [{"name": "a", "device": "/dev/sda"}, {"name": "b", "device": "/dev/sdb"}],
        }
        for number, name in enumerate(("stork", "heron", "crane"), 1)
    }


def problems(told: dict[str, dict[str, Any]], **names: tuple[str, ...]) -> list[str]:
    """Judge an inventory and return its problems. `names` are host names with their addresses."""
    found: list[str] = judgement.inventory_problems(told, layout(told), lambda name: names.get(name, ()))
    return found


def test_a_sound_inventory() -> None:
    """An inventory as operators write it has no problem."""
    assert problems(inventory()) == []


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"odradek_setings": {}}, "heron: odradek_setings is not known: did you mean odradek_settings?"),
        ({"odradek_vter": True}, "heron: odradek_vter is not known: did you mean odradek_voter?"),
        ({"odradk_voter": True}, "heron: odradk_voter is not known: did you mean odradek_voter?"),
        (
            {"node_helth_seconds": 9},
            "heron: node_helth_seconds is not known: did you mean node_health_seconds?",
        ),
        ({"odradek_zebra_stripes": 1}, "heron: odradek_zebra_stripes is not known: there is no such name"),
        (
            {"odradek_node_id": -5},
            "heron: odradek_node_id is '-5': write a whole number from 0 to 2147483647.",
        ),
        (
            {"odradek_node_id": 2147483648},
            "heron: odradek_node_id is '2147483648': write a whole number from 0 to 2147483647.",
        ),
        (
            {"odradek_client_port": 70000},
            "heron: odradek_client_port is '70000': write a whole number from 1 to 65535.",
        ),
        (
            {"odradek_client_port": "http"},
            "heron: odradek_client_port is 'http': write a whole number from 1 to 65535.",
        ),
        ({"odradek_voter": "perhaps"}, "heron: odradek_voter is 'perhaps': write true or false."),
        (
            {"odradek_disks": ["/dev/sdb"]},
            "heron: entry 1 of odradek_disks is '/dev/sdb': write {name: ..., device: ...}.",
        ),
        ({"odradek_disks": [{"device": "/dev/sdb"}]}, "heron: entry 1 of odradek_disks has no name."),
        ({"odradek_disks": [{"name": "a"}]}, "heron: entry 1 of odradek_disks has no device."),
        (
            {"odradek_disks": [{"name": "a", "device": "sdb"}]},
            "heron: device in entry 1 of odradek_disks is 'sdb': write a path that begins with a slash.",
        ),
        (
            {"odradek_disks": [{"name": "a", "device": "/dev/sdb"}, {"name": "b", "device": "/dev/sdb"}]},
            "heron: /dev/sdb is named 2 times in odradek_disks.",
        ),
        (
            {"odradek_nodes": [{"id": 2, "client_prt": 9}]},
            "heron: client_prt in entry 1 of odradek_nodes is not known: did you mean client_port?",
        ),
        ({"odradek_nodes": [{"disks": ["a"]}]}, "heron: entry 1 of odradek_nodes has no id."),
        ({"odradek_nodes": {"id": 2}}, "heron: odradek_nodes is a dictionary: write a list."),
        (
            {"odradek_acls": [{"user": "shop", "operation": "read", "topik": "t"}]},
            "heron: topik in entry 1 of odradek_acls is not known: did you mean topic?",
        ),
        ({"odradek_settings": ["x"]}, "heron: odradek_settings is a list: write keys and values."),
        (
            {"odradek_settings": {"log.dirs": ["/a", "/b"]}},
            "heron: log.dirs in odradek_settings is a list: write one text, with commas in it for several values.",
        ),
        (
            {"odradek_settings": {"node.id": 7}},
            "heron: node.id in odradek_settings would be the same for several nodes: odradek_node_id makes it.",
        ),
        ({"node_memory_max": "lots"}, "heron: node_memory_max is 'lots': write 8G, 50% or infinity."),
        ({"odradek_passwords": "never"}, "heron: odradek_passwords is 'never': write one of once, always."),
    ],
)
def test_a_mistake(values: dict[str, Any], sentence: str) -> None:
    """Each mistake gives a sentence with the host, the variable and the remedy."""
    told = inventory()
    told["heron"].update(values)
    assert any(each.startswith(sentence) for each in problems(told)), problems(told)


def test_a_mistake_of_all_hosts_is_said_once() -> None:
    """A mistake in a variable of all hosts is reported once, without the name of a host."""
    told = inventory()
    for values in told.values():
        values["odradek_setings"] = {}
    assert problems(told) == ["odradek_setings is not known: did you mean odradek_settings?"]


def test_a_password_is_not_shown() -> None:
    """If a wrong value may be a secret, the sentence hides it."""
    told = inventory()
    for values in told.values():
        values["odradek_users"] = [{"name": "shop", "password": ["hunter2"]}]
    (sentence,) = problems(told)
    assert "hunter2" not in sentence


def test_names_of_others() -> None:
    """A variable of another role is accepted. An unknown name like ours is accepted if the operator allows it."""
    told = inventory()
    told["heron"].update({"node_exporter_version": 1, "nginx_port": 80, "inventory_hostname": "heron"})
    assert problems(told) == []
    told["heron"] |= {"disk_root": "/srv", "odradek_variables_unknown": ["disk_root"]}
    assert problems(told) == []


def test_a_name_that_the_collection_reads() -> None:
    """Variables that playbooks set count as known, since the collection's own files use their names."""
    told = inventory()
    told["heron"]["odradek_host_state"] = {}
    assert problems(told) == []


def test_hosts_at_one_address() -> None:
    """Two hosts with one address are refused, since they would format the same disks. Host names are resolved first."""
    told = inventory()
    told["heron"]["ansible_host"] = "192.0.2.1"
    sentence = "stork and heron have one address, 192.0.2.1: give each host its own in ansible_host."
    assert problems(told) == [sentence]
    told["heron"]["ansible_host"] = "heron.example.net"
    assert problems(told, **{"heron.example.net": ("192.0.2.1",)}) == [sentence]
    assert problems(told, **{"heron.example.net": ("192.0.2.77",)}) == []


def test_ports_that_are_there_twice() -> None:
    """Two listeners with the same port at one address are refused."""
    told = inventory()
    told["heron"]["odradek_client_port"] = 9093
    (sentence,) = problems(told)
    assert (
        "192.0.2.2:9093 is the client port of node 2 (heron) and the controller port of node 2 (heron)"
        in sentence
    )
    told = inventory()
    told["heron"]["odradek_address"] = "192.0.2.1"
    found = problems(told)
    assert len(found) == 3
    assert "the client port of node 1 (stork) and the client port of node 2 (heron)" in " ".join(found)


def test_a_value_that_cannot_be_read() -> None:
    """A template that fails is reported as a mistake of its variable, whatever its error is."""

    class Failing(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            if name == "odradek_rack":
                raise RuntimeError("'nosuch' is undefined")
            return super().__getitem__(name)

    told: dict[str, Any] = inventory()
    told["heron"] = Failing(told["heron"] | {"odradek_rack": ""})
    found = judgement.inventory_problems(told, layout(inventory()), lambda name: ())
    assert found == ["heron: odradek_rack cannot be read: 'nosuch' is undefined"]


@pytest.mark.parametrize(
    ("one", "other", "errors"),
    [("voter", "vter", 1), ("voter", "votre", 1), ("settings", "setings", 1), ("a", "a", 0), ("", "abc", 3)],
)
def test_distance(one: str, other: str, errors: int) -> None:
    """A missing, additional or different letter, or two swapped letters, count as one error."""
    assert judgement.distance(one, other) == judgement.distance(other, one) == errors


def looked_at(**changes: Any) -> dict[str, Any]:
    """Return the facts of a host on which nothing is wrong."""
    return {
        "system": "debian 12",
        "systems": ["debian 12"],
        "memory_bytes": 4_000_000_000,
        "memory_bytes_min": 900_000_000,
        "asked_at": 100.0,
        "answered_at": 101.0,
        "clock_seconds": 100.5,
        "clock_skew_seconds_max": 5,
        "clock_synchronized": True,
        "synchronized": True,
        "machine": [],
        "taken": [],
        "listening": [],
        "resolved": {},
        "absent": [],
        "unreached": [],
        "running": [],
        "cluster_id": "",
        "directories": [],
        **changes,
    }


def judged(told: dict[str, dict[str, Any]], **run: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = verdicts.verdict(told, layout(told), {**WHOLE, **run})
    return found


def hosts(*, member: bool = False, **changes: Any) -> dict[str, dict[str, Any]]:
    """Return an inventory with the facts of its hosts. `changes` are facts of the host heron."""
    told = inventory()
    for name, values in told.items():
        values["odradek_host_state"] = {"founded": member, "nodes": [], "releases": ["0.1.0"]}
        values["host_judged"] = looked_at(**(changes if name == "heron" else {}))
    return told


def test_hosts_on_which_nothing_is_wrong() -> None:
    """Sound hosts lead to empty lists of problems and notes."""
    assert judged(hosts()) == {"problems": [], "notes": []}


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"system": "ubuntu 24.04"}, "heron: it has the system ubuntu 24.04"),
        ({"memory_bytes": 500_000_000}, "heron: it has 500 MB of memory, and 900 are needed"),
        (
            {"taken": [{"port": 9092, "by": "nginx (process 7)"}]},
            "heron: port 9092 is taken by nginx (process 7).",
        ),
        ({"resolved": {"stork.example": []}}, "heron: the name stork.example has no address there"),
        ({"resolved": {"heron": ["127.0.1.1"]}}, "heron: the name heron is 127.0.1.1 there"),
        ({"absent": ["192.0.2.2"]}, "heron: no interface there has the address 192.0.2.2"),
        ({"clock_seconds": 3700.5}, "heron: its clock is wrong by more than 5 s"),
        ({"synchronized": False}, "heron: no NTP client keeps its clock"),
    ],
)
def test_a_host_that_cannot_be_taken(facts: dict[str, Any], sentence: str) -> None:
    """A new host with one of these faults is refused. A host that belongs to the cluster is refused only for its
    clock."""
    assert any(each.startswith(sentence) for each in judged(hosts(**facts))["problems"])
    assert judged(hosts(**facts), converges=False, prepares=False)["problems"] == []
    assert judged(hosts(**facts), host="stork")["problems"] == []
    member = judged(hosts(member=True, **facts))
    is_clock = "clock" in sentence
    assert any(each.startswith(sentence) for each in member["problems"]) is is_clock


def test_peers_that_cannot_be_reached() -> None:
    """A failed connection is a problem only if a node listens at that address."""
    told = hosts(unreached=[{"id": 1, "address": "192.0.2.1", "port": 9092, "why": "no answer"}])
    assert judged(told)["problems"] == []
    told["stork"]["host_judged"]["listening"] = [9092]
    (sentence,) = judged(told)["problems"]
    assert sentence.startswith("heron: 192.0.2.1:9092 (node 1) cannot be reached from there (no answer)")


def test_one_machine_with_two_names() -> None:
    """Two hosts are one machine if both id and address are equal. The id alone may come from a copied image."""
    told = hosts(machine=["abc", "10.0.0.1"])
    told["stork"]["host_judged"]["machine"] = ["abc", "10.0.0.1"]
    assert "stork, heron are one machine (10.0.0.1)" in judged(told)["problems"][0]
    told["stork"]["host_judged"]["machine"] = ["abc", "10.0.0.2"]
    assert judged(told)["problems"] == []


@pytest.mark.parametrize(
    ("found", "is_refused"),
    [
        ({"online": True, "released": False}, True),
        ({"online": False, "released": False}, False),
        ({"online": True, "released": True}, False),
        (None, True),
    ],
    ids=["in service", "dead", "retired", "the cluster does not answer"],
)
def test_a_disk_that_vanished(found: dict[str, bool] | None, is_refused: bool) -> None:
    """If the inventory lacks a disk in service, the run is refused. A dead or retired disk may be left out."""
    paths = [f"/srv/odradek/{disk}/node-2" for disk in ("a", "b", "c")]
    told = hosts(member=True, directories=[{"node": 2, "path": path, "mounted": True} for path in paths])
    if found is not None:
        live = [
            {"broker": 2, "path": path, "online": True, "released": False, "replicas": 4} for path in paths
        ]
        live[2].update(found)
        told["stork"]["odradek_live"] = {"status": {"cluster_id": CLUSTER_ID}, "directories": live}
    refused = judged(told)["problems"]
    assert bool(refused) is is_refused
    if refused:
        assert "heron: disk c is in service" in refused[0]
        assert "retire_disk -e odradek_host=heron -e odradek_disk=c first" in refused[0]
    assert judged(told, converges=False)["problems"] == []


def test_the_first_disk_stays_the_first() -> None:
    """The first directory has the metadata log. Disks in another order are refused, since the log would begin empty."""
    paths = [f"/srv/odradek/{disk}/node-2" for disk in ("b", "a")]
    told = hosts(member=True, directories=[{"node": 2, "path": path, "mounted": True} for path in paths])
    (sentence,) = judged(told)["problems"]
    assert "name b before the others" in sentence


def test_a_node_that_vanished() -> None:
    """If the inventory lacks a node that runs on a host, the run is refused."""
    assert (
        "node 14 runs there, and the inventory does not name it"
        in judged(hosts(running=[2, 14]))["problems"][0]
    )


def test_another_cluster() -> None:
    """Hosts, and a cluster that answers, must have the cluster id of the inventory."""
    told = hosts(member=True, cluster_id="other")
    assert "heron: it belongs to the cluster other" in judged(told, converges=False)["problems"][0]
    told = hosts(member=True)
    told["stork"]["odradek_live"] = {"status": {"cluster_id": "other"}, "directories": []}
    assert "The cluster that answers is other" in judged(told)["problems"][0]


def test_members_that_the_inventory_lacks() -> None:
    """A broker or voter that is not in the inventory, or has another address there, gives only a note."""
    told = hosts(member=True)
    brokers = [
        {"broker": 2, "host": "192.0.2.9", "port": 9092, "online": True, "replicas": 3},
        {"broker": 9, "host": "192.0.2.19", "port": 9092, "online": False, "replicas": 3},
    ]
    status = {"cluster_id": CLUSTER_ID, "brokers": brokers, "quorum": {"voters": [1, 8]}}
    told["stork"]["odradek_live"] = {"status": status, "directories": []}
    found = judged(told)
    assert found["problems"] == []
    said = " ".join(found["notes"])
    assert "node 2 at 192.0.2.9:9092, and the inventory has it at 192.0.2.2 (heron)" in said
    assert "broker 9 (192.0.2.19:9092, not online, 3 replicas), which the inventory lacks" in said
    assert "Controller 8 votes, and the inventory lacks it." in said


def test_all_at_once() -> None:
    """Mistakes of every kind, and hosts that were not reached, are reported in one list."""
    told = hosts(taken=[{"port": 9092, "by": "nginx (process 7)"}])
    told["stork"]["odradek_setings"] = {}
    told["stork"]["odradek_voter"] = False
    told["crane"]["disks_judged"] = {"msg": "Nothing was formatted: disk b: there is no /dev/nosuch."}
    told["heron"]["node_settings_judged"] = {"problems": {"2": ["unknown key log.retention.hour"]}}
    told["crane"]["odradek_host_state"] = {"unreachable": True}
    found = judged(told, fails_on_difference=True)["problems"]
    for words in (
        "odradek_setings is not known",
        "2 nodes vote",
        "heron: port 9092 is taken",
        "crane: Nothing was formatted",
        "heron: settings: unknown key log.retention.hour",
        "odradek_fail_on_difference is for runs with --check",
        "crane cannot be reached over SSH.",
    ):
        assert any(words in each for each in found), (words, found)
    assert len(found) == 7


def test_an_unreachable_host_alone() -> None:
    """An unreachable host alone is no problem here. Other rules decide whether the run needs it."""
    told = hosts()
    told["crane"]["odradek_host_state"] = {"unreachable": True}
    del told["crane"]["host_judged"]
    assert judged(told)["problems"] == []


def test_looks() -> None:
    """A host checks all ports of its own nodes, and the ports by which nodes on other hosts are reached."""
    plan = layout(inventory())
    looks = verdicts.looks_of(plan, "heron")
    assert looks["nodes"] == [{"id": 2, "address": "192.0.2.2", "ports": [9094, 9092, 9093]}]
    assert [(each["id"], each["ports"]) for each in looks["peers"]] == [(1, [9092, 9093]), (3, [9092, 9093])]
    told = inventory()
    for values in told.values():
        values["odradek_security"] = "only"
    looks = verdicts.looks_of(layout(told), "heron")
    assert looks["nodes"][0]["ports"] == [9094, 9095, 9096, 9097]
    assert looks["peers"][0]["ports"] == [9096, 9097]
