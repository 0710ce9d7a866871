"""The quorum comes back: metadata are destroyed on most hosts, and the playbooks `recover` and `restore` lead on."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tests.deploy.life import DISK_BYTES, FIRST, Life, is_whole, refused

_LOG = "__cluster_metadata-0"


def _unit(life: Life, name: str) -> str:
    return f"odradek@{life.hosts[name].number}"


def _destroy_first_disks(life: Life, *names: str) -> None:
    """Cut the power of hosts one after another, and give each an empty disk in place of the one with the metadata log."""
    for name in names:
        life.hosts.kill(name)
        host = life.hosts[name]
        life.hosts.attach_disk(host, "a", DISK_BYTES)
        for each in life.told[name]["odradek_disks"]:
            if each["name"] == "a":
                each["device"] = host.disks["a"]
    life.hosts.boot(*names)


def _destroy_logs(life: Life, *names: str) -> None:
    """Stop all nodes, and remove the metadata logs of some; the records stay."""
    for name in FIRST:
        life.hosts.ssh(name, f"systemctl stop {_unit(life, name)}")
    for name in names:
        properties = f"/etc/odradek/node-{life.hosts[name].number}.properties"
        where = f"$(sed -n 's/^log.dirs=//p' {properties} | cut -d, -f1)"
        life.hosts.ssh(name, f"test -d {where}/{_LOG} && rm -r {where}/{_LOG}*")


def _lost(said: str) -> str:
    """Return the voters that a plan misses, as it names them."""
    found = sorted(set(re.findall(r"--lost (\d+:[\w-]{22})", said)))
    assert found, said[-3000:]
    return ",".join(found)


def _are_enabled(life: Life, names: Sequence[str] = FIRST) -> bool:
    return all(
        life.hosts.ssh(name, f"systemctl is-enabled {_unit(life, name)}", check=False) == "enabled\n"
        for name in names
    )


def two_disks_are_destroyed(life: Life) -> None:
    """Remove the metadata of two voters of three under load, and recover the quorum by the playbook."""
    with life.step("the quorum is recovered: two of three metadata disks are gone"):
        refused(life.playbooks.run("recover", fails=True), "the quorum has a leader, so it needs no recovery")
        _destroy_first_disks(life, "heron", "stork")
        looked = life.playbooks.run("recover").output
        assert "Nothing was recovered" in looked, looked[-3000:]
        lost = _lost(looked)
        assert len(lost.split(",")) == 2, lost
        planned = life.playbooks.run("recover", odradek_lost=lost).output
        assert "new log from offset" in planned, planned[-3000:]
        assert "Read the plan above, then add -e odradek_execute=true" in planned, planned[-3000:]
        assert _are_enabled(life)
        done = life.playbooks.run("recover", odradek_lost=lost, odradek_execute="true").output
        assert "The quorum was recovered" in done, done[-3000:]
        life.wait_until(is_whole, "a whole cluster")
        assert _are_enabled(life)
        aside = life.hosts.ssh(
            "crane", f"ls -d /srv/odradek/a/*/{_LOG}.*-stray || ls -d /srv/odradek/a/{_LOG}.*-stray"
        )
        assert aside, "the old metadata log is not kept"


def a_backup_is_restored(life: Life) -> None:
    """Make a backup, go on, destroy all metadata logs, and restore it: refused beside a quorum, and beside a better copy."""
    with life.step("a backup of the metadata log is restored"):
        backups = life.hosts.work / "backups"
        life.playbooks.run("backup", odradek_backups=str(backups))
        (backup, *_) = sorted(backups.rglob("*.tar.gz"))
        beside = life.playbooks.run("restore", fails=True, odradek_backup=str(backup))
        refused(beside, "the quorum has a leader, so it needs no recovery")
        _destroy_logs(life, "heron", "stork")
        lost = _lost(life.playbooks.run("recover").output)
        better = life.playbooks.run("restore", odradek_backup=str(backup), odradek_lost=lost).output
        assert "has a better copy than the backup" in " ".join(better.split()), better[-3000:]
        _destroy_logs(life, "crane")
        lost = _lost(life.playbooks.run("restore", odradek_backup=str(backup)).output)
        done = life.playbooks.run(
            "restore", odradek_backup=str(backup), odradek_lost=lost, odradek_execute="true"
        ).output
        assert "The quorum was recovered" in done, done[-3000:]
        life.wait_until(is_whole, "a whole cluster")


STEPS: tuple[Callable[[Life], None], ...] = (two_disks_are_destroyed, a_backup_is_restored)
