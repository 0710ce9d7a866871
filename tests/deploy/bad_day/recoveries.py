"""Recoveries of the quorum. The metadata are destroyed on most hosts or on all, and `recover` or `restore` repairs
them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tests.deploy.life import DISK_BYTES, FIRST, Life, host_entry, is_whole, refused
from tests.deploy.load import TOPIC

_LOG = "__cluster_metadata-0"
_ODRADEK = "/opt/odradek/current/bin/odradek"
_RETENTION_MS = "86400000"


def _unit(life: Life, name: str) -> str:
    return f"odradek@{life.hosts[name].number}"


def _destroy_first_disks(life: Life, *names: str) -> None:
    """Cut the power of hosts one after another. Replace the disk with the metadata log by an empty disk, and boot
    them."""
    for name in names:
        life.hosts.kill(name)
        host = life.hosts[name]
        life.hosts.attach_disk(host, "a", DISK_BYTES)
        for each in life.told[name]["odradek_disks"]:
            if each["name"] == "a":
                each["device"] = host.disks["a"]
    life.hosts.boot(*names)


def _destroy_logs(life: Life, *names: str) -> None:
    """Stop all nodes, and remove the metadata logs of the named hosts. The records stay."""
    for name in FIRST:
        life.hosts.ssh(name, f"systemctl stop {_unit(life, name)}")
    for name in names:
        _remove_log(life, name)


def _remove_log(life: Life, name: str) -> None:
    properties = f"/etc/odradek/node-{life.hosts[name].number}.properties"
    where = f"$(sed -n 's/^log.dirs=//p' {properties} | cut -d, -f1)"
    life.hosts.ssh(name, f"test -d {where}/{_LOG} && rm -r {where}/{_LOG}*")


def _said(life: Life, playbook: str, **extra: str) -> str:
    """Run a playbook, and return its output as one line."""
    return " ".join(life.playbooks.run(playbook, **extra).output.split())


def _lost(said: str) -> str:
    """Return the missing voters that a plan names, in the form of the option `--lost`."""
    found = sorted(set(re.findall(r"--lost (\d+:[\w-]{22})", said)))
    assert found, said[-3000:]
    return ",".join(found)


def _are_enabled(life: Life, names: Sequence[str] = FIRST) -> bool:
    return all(
        life.hosts.ssh(name, f"systemctl is-enabled {_unit(life, name)}", check=False) == "enabled\n"
        for name in names
    )


def two_disks_are_destroyed(life: Life) -> None:
    """Remove the metadata disks of two of three voters under load, and recover the quorum with the playbook
    `recover`."""
    with life.step("the quorum is recovered: two of three metadata disks are gone"):
        refused(life.playbooks.run("recover", fails=True), "the quorum has a leader, so it needs no recovery")
        _destroy_first_disks(life, "heron", "stork")
        looked = _said(life, "recover")
        assert "Nothing was recovered" in looked, looked[-3000:]
        lost = _lost(looked)
        assert len(lost.split(",")) == 2, lost
        planned = _said(life, "recover", odradek_lost=lost)
        assert "new log from offset" in planned, planned[-3000:]
        assert "Read the plan above, then add -e odradek_execute=true" in planned, planned[-3000:]
        assert _are_enabled(life)
        done = _said(life, "recover", odradek_lost=lost, odradek_execute="true")
        assert "The quorum was recovered" in done, done[-3000:]
        life.wait_until(is_whole, "a whole cluster")
        assert _are_enabled(life)
        aside = life.hosts.ssh(
            "crane", f"ls -d /srv/odradek/a/*/{_LOG}.*-stray || ls -d /srv/odradek/a/{_LOG}.*-stray"
        )
        assert aside, "the old metadata log is not kept"


def a_backup_is_restored(life: Life) -> None:
    """Make a backup, destroy all metadata logs, and restore the backup.

    The restore is refused while the quorum has a leader, and while a host has a better copy than the backup.
    """
    with life.step("a backup of the metadata log is restored"):
        backups = life.hosts.work / "backups"
        life.playbooks.run("backup", odradek_backups=str(backups))
        (backup, *_) = sorted(backups.rglob("*.tar.gz"))
        beside = life.playbooks.run("restore", fails=True, odradek_backup=str(backup))
        refused(beside, "the quorum has a leader, so it needs no recovery")
        _destroy_logs(life, "heron", "stork")
        lost = _lost(_said(life, "recover"))
        better = _said(life, "restore", odradek_backup=str(backup), odradek_lost=lost)
        assert "has a better copy than the backup" in better, better[-3000:]
        _destroy_logs(life, "crane")
        lost = _lost(_said(life, "restore", odradek_backup=str(backup)))
        done = _said(life, "restore", odradek_backup=str(backup), odradek_lost=lost, odradek_execute="true")
        assert "The quorum was recovered" in done, done[-3000:]
        life.wait_until(is_whole, "a whole cluster")


def _setting(life: Life, topic: str, key: str) -> str:
    """Return the value of a topic's setting, as it is in force."""
    asked = f"{_ODRADEK} config get topic {topic} {key} --bootstrap-server {life.bootstrap}"
    return (life.hosts.ssh("crane", asked) or "").strip()


def no_copy_is_left(life: Life) -> None:
    """Remove all metadata logs without a backup. The log is rebuilt from the disks, and settings come from the
    inventory."""
    with life.step("all metadata are gone: the log is made anew from the disks"):
        configs = {"retention.ms": int(_RETENTION_MS)}
        life.playbooks.inventory["vars"]["odradek_topics"] = [
            {"name": TOPIC, "partitions": 12, "replication_factor": len(FIRST), "configs": configs}
        ]
        _destroy_logs(life, *FIRST)
        looked = _said(life, "recover")
        assert "odradek metadata rebuild" in looked, looked[-3000:]
        planned = _said(life, "recover", odradek_rebuild="true")
        assert "new log from offset" in planned, planned[-3000:]
        done = _said(life, "recover", odradek_rebuild="true", odradek_execute="true")
        assert "The quorum was recovered" in done, done[-3000:]
        life.wait_until(is_whole, "a whole cluster")
        assert _setting(life, TOPIC, "retention.ms") == _RETENTION_MS
        assert _setting(life, "__consumer_offsets", "retention.ms") == "-1"
        del life.playbooks.inventory["vars"]["odradek_topics"]


def a_host_never_comes_back(life: Life) -> None:
    """Lose the machine of one voter and the metadata of another. Recover without the machine, then replace it."""
    with life.step("a host and the metadata of another are gone: recovered without it, then replaced"):
        life.hosts.kill("heron")
        number = life.hosts["heron"].number
        for name in ("stork", "crane"):
            life.hosts.ssh(name, f"systemctl stop {_unit(life, name)}")
        _remove_log(life, "stork")
        looked = _said(life, "recover")
        assert f"--gone {number}" in looked, looked[-3000:]
        words = {"odradek_lost": _lost(looked), "odradek_gone": str(number)}
        done = _said(life, "recover", odradek_execute="true", **words)
        assert "The quorum was recovered" in done, done[-3000:]
        life.wait_until(lambda status: status["offline_partitions"] == [], "leaders of all partitions")
        life.hosts.blank("heron", DISK_BYTES)
        life.told["heron"] = host_entry(life.hosts, "heron", voter=True)
        life.hosts.boot("heron")
        life.playbooks.run("replace_host", odradek_host="heron")
        life.wait_until(is_whole, "a whole cluster")
        assert sorted(life.status()["quorum"]["voters"]) == sorted(life.hosts[name].number for name in FIRST)


STEPS: tuple[Callable[[Life], None], ...] = (
    two_disks_are_destroyed,
    a_backup_is_restored,
    no_copy_is_left,
    a_host_never_comes_back,
)
