"""Hosts that are lost or reinstalled, and the playbooks that bring the cluster back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.deploy.life import DISK_BYTES, FOURTH, Life, host_entry, is_whole, refused

SINGLE, LOST = "single", "lost"
"""Topics whose partitions have one replica each."""
_ODRADEK = "/opt/odradek/current/bin/odradek"
_TAKEN = "intruder"


def _ask(life: Life, *words: str) -> dict[str, Any]:
    """Run a command with `--json` on the host stork, and return its output."""
    keys = " --command-config /etc/odradek/operator.properties" if life.secured else ""
    command = f"{_ODRADEK} {' '.join(words)} --json --bootstrap-server {life.bootstrap}{keys}"
    found: dict[str, Any] = json.loads(life.hosts.ssh("stork", command) or "")
    return found


def _lose(life: Life, name: str) -> None:
    """Cut the power of a host, and wait until the cluster notices."""
    number = life.hosts[name].number
    life.hosts.kill(name)
    life.wait_until(
        lambda status: (
            any(each["broker"] == number and not each["online"] for each in status["brokers"])
            and number in (*status["quorum"]["silent_voters"], *_strangers(status, number))
        ),
        f"{name} is missed",
    )


def _strangers(status: dict[str, Any], number: int) -> list[int]:
    return [] if number in status["quorum"]["voters"] else [number]


def votes_are_taken_last(life: Life) -> None:
    """Try to drain a host whose replicas have no other place. The refusal comes before any change, so it keeps its
    vote."""
    with life.step("a drain that is refused takes no vote"):
        before = life.status()["quorum"]["voters"]
        for name in ("heron", "crane"):
            life.told[name]["odradek_voter"] = False
        kept = life.playbooks.run("drain_host", fails=True, odradek_host="heron")
        refused(kept, "has 3 replicas, and only 2 brokers would remain")
        for name in ("heron", "crane"):
            life.told[name]["odradek_voter"] = True
        assert life.status()["quorum"]["voters"] == before


def a_host_is_away(life: Life) -> None:
    """Cut the power of a host. Playbooks that can work without it succeed, and the others are refused with the way
    out."""
    _ask(life, "topic", "create", SINGLE, "--partitions", "6", "--replication-factor", "1")
    with life.step("a host is away: status, backup, access go on"):
        _lose(life, "crane")
        for name in ("status", "backup", "access"):
            said = life.playbooks.run(name, odradek_backups=str(life.hosts.work / "backups")).output
            assert "cannot be reached" in said, said[-3000:]
        assert list((life.hosts.work / "backups").iterdir())
        stopped = life.playbooks.run("reconfigure", fails=True)
        refused(stopped, "crane cannot be reached over SSH", "odradek.cluster.remove_host")
        gone = life.playbooks.run("drain_host", fails=True, odradek_host="crane")
        refused(gone, "crane cannot be reached over SSH", "odradek.cluster.remove_host")
        alive = life.playbooks.run("remove_host", fails=True, odradek_host="heron")
        refused(alive, "of heron is alive", "odradek.cluster.drain_host")


def a_used_disk_is_wiped(life: Life) -> None:
    """Add a host with used disks while another host is away. A used disk is wiped only if its serial number is
    given."""
    with life.step("a host with used disks is added while another is away"):
        host = life.hosts[FOURTH]
        life.hosts.ssh(FOURTH, f"dd if=/dev/urandom of={host.disks['a']} bs=1M seek=512 count=64 conv=fsync")
        life.hosts.ssh(FOURTH, f"mkfs.xfs -q -L photos {host.disks['b']} && mount {host.disks['b']} /mnt")
        life.told[FOURTH] = host_entry(life.hosts, FOURTH, voter=False)
        serials = {disk: str(host.directory / f"disk-{disk}") for disk in ("a", "b")}
        both = ",".join(serials.values())
        kept = life.playbooks.run("add_host", fails=True, odradek_host=FOURTH, odradek_wipe=serials["b"])
        refused(
            kept,
            "holds data, though no signature",
            f"odradek_wipe={serials['a']}",
            f"(serial {serials['b']}) is not wiped, since it is mounted at /mnt",
        )
        life.hosts.ssh(FOURTH, "umount /mnt")
        unknown = life.playbooks.run(
            "add_host", fails=True, odradek_host=FOURTH, odradek_wipe=f"{both},NOSUCH"
        )
        refused(unknown, "odradek_wipe names", "NOSUCH")
        joined = life.playbooks.run("add_host", odradek_host=FOURTH, odradek_wipe=both)
        said = " ".join(joined.output.split())
        assert f"{FOURTH} has joined and gets no partitions yet" in said, said[-3000:]
        status = life.status()
        assert host.number in [each["broker"] for each in status["brokers"] if each["online"]]
        assert status["moving_partitions"] == []


def a_host_is_given_up(life: Life) -> None:
    """Remove a host that will not come back. The operator names the topics whose only records were on this host."""
    number = life.hosts["crane"].number
    with life.step("a dead host is given up") as step:
        life.told["crane"]["odradek_voter"] = False
        life.told[FOURTH]["odradek_voter"] = True
        waits = life.playbooks.run("remove_host", fails=True, odradek_host="crane")
        said = " ".join(waits.output.split())
        assert f"{SINGLE}: 2 partitions had all their records on this host alone" in said, waits.output[
            -4000:
        ]
        assert f"-e odradek_accept_loss={SINGLE}" in said
        status = life.status()
        assert sorted(status["quorum"]["voters"]) == sorted(
            life.hosts[name].number for name in ("stork", "heron", FOURTH)
        )
        assert not status["under_replicated_partitions"], status
        # Now the host is out of the inventory, so its node id names it.
        del life.told["crane"]
        life.playbooks.run("remove_host", odradek_host=str(number), odradek_accept_loss=SINGLE)
        life.wait_until(is_whole, "a whole cluster")
        replicas = {broker["broker"]: broker["replicas"] for broker in life.status()["brokers"]}
        assert number not in replicas
        assert replicas[life.hosts[FOURTH].number] > 0, replicas
        assert _ask(life, "partition", "list", SINGLE, "--offline")["partitions"] == []
        step.note = (
            f"{len(_ask(life, 'partition', 'list', SINGLE)['partitions'])} partitions of one replica served"
        )


def a_new_system(life: Life) -> None:
    """Give a host a new system with other user ids. Its disks are found and kept."""
    with life.step("a host with a new system keeps its disks"):
        before = {each["path"] for each in _directories(life, "heron")}
        _lose(life, "heron")
        life.hosts.renew_system("heron")
        life.hosts.boot("heron")
        life.hosts.ssh("heron", f"useradd --system --uid 640 {_TAKEN}")
        taken = life.playbooks.run("deploy", fails=True)
        assert f"already belongs to {_TAKEN}" in " ".join(taken.output.split()), taken.output[-3000:]
        kept = life.hosts.ssh("heron", "stat --format %i /srv/odradek/b/node-*/meta.properties || true")
        life.playbooks.run("deploy", host_uid="741", host_gid="741")
        life.wait_until(is_whole, "a whole cluster")
        owners = life.hosts.ssh("heron", "find /srv/odradek/*/node-* ! -user odradek | head") or ""
        assert owners == "", owners
        assert life.hosts.ssh("heron", "id --user odradek") == "741\n"
        assert {each["path"] for each in _directories(life, "heron")} == before, kept


def a_first_disk_dies(life: Life) -> None:
    """Lose the disk with a node's metadata log. The other disk keeps its logs, and the node votes again.

    Partitions whose only replica was on the lost disk wait until the operator chooses. They hold up nothing else.
    """
    _ask(life, "topic", "create", LOST, "--partitions", "12", "--replication-factor", "1")
    with life.step("the first disk of a host is replaced, the other one is kept") as step:
        number = life.hosts["heron"].number
        alone = _alone_on(life, "heron", "a")
        assert alone
        _lose(life, "heron")
        life.hosts.attach_disk(life.hosts["heron"], "a", DISK_BYTES)
        life.hosts.boot("heron")
        life.told["heron"]["odradek_disks"] = host_entry(life.hosts, "heron", voter=True)["odradek_disks"]
        formatted = f"cat /srv/odradek/b/node-{number}/meta.properties"
        before = life.hosts.ssh("heron", formatted)
        said = " ".join(life.playbooks.run("replace_host", odradek_host="heron").output.split())
        assert f"Node {number}: disks b keep their data" in said, said[-3000:]
        assert "disks a begin empty" in said
        assert life.hosts.ssh("heron", formatted) == before
        assert number in life.status()["quorum"]["voters"]
        assert "an operator has to choose" in said, said[-3000:]
        lost = _ask(life, "partition", "list", "--offline")["partitions"]
        assert {(each["topic"], each["partition"]) for each in lost} == alone
        for each in lost:
            assert each["replicas"] == [number], each
            _ask(life, "partition", "elect", f"{each['topic']}:{each['partition']}", "--unclean", "--execute")
        life.wait_until(is_whole, "a whole cluster")
        step.note = f"{len(lost)} partitions of one replica begun anew"


def _directories(life: Life, name: str) -> list[dict[str, Any]]:
    (broker,) = _ask(life, "disk", "list", "--broker", str(life.hosts[name].number))["brokers"]
    found: list[dict[str, Any]] = broker["directories"]
    assert all(each["online"] for each in found), found
    return found


def _alone_on(life: Life, name: str, disk: str) -> set[tuple[str, int]]:
    """Return the partitions whose only replica is on a disk of a host."""
    (found,) = [each for each in _directories(life, name) if each["path"].startswith(f"/srv/odradek/{disk}/")]
    return {
        (each["topic"], each["partition"]) for each in found["replicas"] if each["topic"] in (SINGLE, LOST)
    }


STEPS: tuple[Callable[[Life], None], ...] = (
    votes_are_taken_last,
    a_host_is_away,
    a_used_disk_is_wiped,
    a_host_is_given_up,
    a_new_system,
    a_first_disk_dies,
)
