"""Mistakes in the inventory. All of them are found before anything is changed."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from tests.deploy.life import FIRST, FOURTH, Life, host_entry, is_whole, refused
from tests.deploy.playbooks import Outcome

_SQUATTER = "python3 -c 'import socket, time; s = socket.socket(); s.bind((\"0.0.0.0\", 9092)); s.listen(); time.sleep(600)'"
_IT_LISTENS = "until grep -q ':2384 [0-9A-F:]* 0A ' /proc/net/tcp; do sleep 0.1; done"
"""A command that waits until port 9092 is open. The kernel's table shows this port as 2384."""
_ALL_FILES = "cat /etc/odradek/* /etc/systemd/system/*odradek* /etc/sysctl.d/* | sha256sum; ls /opt/odradek/versions; blkid"


@contextmanager
def inventory_of_mistakes(life: Life) -> Iterator[dict[str, Any]]:
    """Yield the inventory for a step to spoil, and restore it afterwards."""
    before = copy.deepcopy(life.playbooks.inventory)
    try:
        yield life.playbooks.inventory
    finally:
        life.playbooks.inventory.clear()
        life.playbooks.inventory.update(before)


def said(outcome: Outcome) -> str:
    """Return the output of a run as one line, since Ansible wraps its lines."""
    return " ".join(outcome.output.split())


def starts(life: Life) -> dict[str, str]:
    """Return the start time of each host's first node."""
    return {name: life.started(name) for name in FIRST}


def digests(life: Life) -> dict[str, str | None]:
    """Return, for each host, a digest of the files that a run could have written."""
    return {name: life.hosts.ssh(name, _ALL_FILES) for name in FIRST}


def mistakes_in_the_inventory(life: Life) -> None:
    """See that mistakes in the inventory, and settings that the release refuses, come in one list. No host is
    changed."""
    with life.step("sixteen mistakes in one list"), inventory_of_mistakes(life) as inventory:
        before, files = starts(life), digests(life)
        variables, told = inventory["vars"], inventory["hosts"]
        variables["odradek_setings"] = {}
        variables["node_health_secnds"] = 40
        variables["node_copy_seconds"] = "a day"
        variables["odradek_settings"] = {
            "log.retention.hour": 90,
            "num.partitions": 0,
            "log.roll.ms": 0,
            "broker.heartbeat.interval.ms": 9000,
            "log.cleaner.threads": ["1"],
        }
        told["heron"]["odradek_vter"] = True
        told["heron"]["odradek_voter"] = False
        told["heron"]["odradek_client_port"] = 9093
        told["crane"]["odradek_disks"].append({"device": "/dev/loop0"})
        told["crane"]["odradek_disks"].append("/dev/loop1")
        told["ibis"] = {
            **copy.deepcopy(told["crane"]),
            "odradek_node_id": -5,
            "odradek_rack": "r4",
            "odradek_voter": False,
        }
        outcome = life.playbooks.run("deploy", fails=True, odradek_fail_on_difference="true")
        refused(
            outcome,
            "odradek_setings is not known: did you mean odradek_settings?",
            "node_health_secnds is not known: did you mean node_health_seconds?",
            "node_copy_seconds is 'a day': write a whole number",
            "log.cleaner.threads in odradek_settings is a list",
            "heron: odradek_vter is not known: did you mean odradek_voter?",
            "2 nodes vote: a majority needs an odd number",
            "9093 is the client port of node 2 (heron) and the controller port of node 2 (heron)",
            "entry 3 of odradek_disks has no name.",
            "entry 4 of odradek_disks is '/dev/loop1': write {name: ..., device: ...}.",
            "odradek_node_id is '-5': write a whole number from 0 to 2147483647.",
            "crane and ibis have one address",
            "settings: unknown key log.retention.hour: did you mean log.retention.hours?",
            "Invalid value 0 for configuration num.partitions",
            "settings: Invalid value 0 for configuration log.roll.ms",
            "settings: Invalid value 9000 for configuration broker.heartbeat.interval.ms",
            "odradek_fail_on_difference is for runs with --check",
        )
        assert starts(life) == before
        assert digests(life) == files


def things_in_service(life: Life) -> None:
    """Take disks and a node that are in service out of the inventory.

    A missing disk is refused, and a sentence says how to retire it. A missing node gives only a note.
    """
    with life.step("things in service taken out of the inventory"), inventory_of_mistakes(life) as inventory:
        before, told = starts(life), inventory["hosts"]
        whole = copy.deepcopy(inventory)
        told["heron"]["odradek_disks"] = told["heron"]["odradek_disks"][:1]
        told["crane"]["odradek_disks"] = told["crane"]["odradek_disks"][::-1]
        inventory["vars"]["odradek_cluster_id"] = "another"
        refused(
            life.playbooks.run("deploy", fails=True),
            "heron: disk b is in service",
            "retire_disk -e odradek_host=heron -e odradek_disk=b first",
            "name a before the others",
            "it belongs to the cluster",
            "odradek_cluster_id is another",
        )
        inventory.update(whole)
        del inventory["hosts"]["crane"]
        inventory["hosts"]["heron"]["odradek_voter"] = False
        # No release knows this key, but the operator allows it.
        inventory["vars"]["odradek_settings"] = {
            **inventory["vars"]["odradek_settings"],
            "log.retention.hour": 90,
        }
        inventory["vars"]["odradek_settings_unknown"] = ["log.retention.hour"]
        shown = life.playbooks.run("reconfigure", "--check")
        assert "The cluster knows broker 3" in said(shown), shown.output[-3000:]
        assert "would be restarted" in said(shown), shown.output[-3000:]
        assert starts(life) == before


def a_new_host(life: Life) -> None:
    """See that a new host is checked before it is changed: its system, memory and ports, and a name that is
    127.0.1.1."""
    with life.step("a new host that cannot be taken"), inventory_of_mistakes(life) as inventory:
        told = inventory["hosts"]
        told[FOURTH] = host_entry(life.hosts, FOURTH, voter=False)
        told[FOURTH]["odradek_address"] = FOURTH
        life.hosts.ssh(
            FOURTH, f"touch /etc/hosts; cp /etc/hosts /tmp/hosts; echo 127.0.1.1 {FOURTH} >> /etc/hosts"
        )
        life.hosts.ssh(FOURTH, f"systemd-run --quiet --unit=squatter {_SQUATTER}; {_IT_LISTENS}")
        inventory["vars"]["host_systems"] = ["debian 99"]
        inventory["vars"]["host_memory_bytes_min"] = 1 << 50
        outcome = life.playbooks.run("add_host", fails=True, odradek_host=FOURTH)
        refused(
            outcome,
            f"{FOURTH}: port 9092 is taken by python3 (process",
            f"{FOURTH}: it has the system debian {life.hosts[FOURTH].debian.number}",
            f"{FOURTH}: it has",
            "MB of memory",
            f"{FOURTH}: the name {FOURTH} is 127.0.1.1 there",
        )
        life.hosts.ssh(FOURTH, "systemctl stop squatter; cat /tmp/hosts > /etc/hosts")
        bare = "ls -d /opt/odradek /etc/odradek /srv/odradek 2>/dev/null; true"
        assert life.hosts.ssh(FOURTH, bare) == ""


def a_check_elsewhere(life: Life) -> None:
    """See that a check works in any time zone and shows the changes. If the operator wants that, it fails on a
    difference."""
    with (
        life.step("a check in another time zone, and on a difference"),
        inventory_of_mistakes(life) as inventory,
    ):
        play, before = life.playbooks, starts(life)
        with patch.dict(os.environ, TZ="America/New_York"):
            same = play.run("deploy", "--check", odradek_fail_on_difference="true")
        assert same.changed == 0, same.output[-3000:]
        inventory["vars"]["odradek_settings"] = {
            **inventory["vars"]["odradek_settings"],
            "log.retention.hours": 99,
        }
        other = play.run("reconfigure", "--check", fails=True, odradek_fail_on_difference="true")
        assert "is not as the inventory says" in said(other), other.output[-3000:]
        assert "node 1 would be restarted" in said(other), other.output[-3000:]
        assert starts(life) == before
        assert is_whole(life.status())


STEPS: tuple[Callable[[Life], None], ...] = (
    mistakes_in_the_inventory,
    things_in_service,
    a_new_host,
    a_check_elsewhere,
)
