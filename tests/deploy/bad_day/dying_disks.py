"""Disks that die under running nodes, and a host that loses its address for a while."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.deploy.life import DISK_BYTES, Life, disks_of, host_entry, is_whole

STARTS = 6
"""The number of failed starts to wait for; one comes every 5 s. A former limit was five starts in ten minutes."""
_SECONDS_MAX = 180
_SHUT_DOWN = "import fcntl, os, struct; fcntl.ioctl(os.open('/srv/odradek/b', os.O_RDONLY), 0x8004587D, struct.pack('I', 2))"
"""A program that shuts an XFS or ext4 down. From then on it answers with EIO, as if its device had died."""


def _die_and_be_replaced(life: Life, name: str, *, look: str) -> None:
    """Let disk b of a host die under load, check its node, and replace the disk.

    `look` is a playbook that changes nothing and must name the dead disk.
    """
    hosts, number = life.hosts, life.hosts[name].number
    begun = life.started(name)
    hosts.ssh(name, f'python3 -c "{_SHUT_DOWN}"')
    life.wait_until(
        lambda status: not disks_of(life, name)["b"]["online"], "the controller hears of the disk"
    )
    assert life.started(name) == begun, "the node has lived on"
    assert disks_of(life, name)["a"]["online"]
    hosts.ssh(name, f"systemctl restart odradek@{number}")
    life.wait_until(
        lambda status: any(b["broker"] == number and b["online"] for b in status["brokers"]),
        f"{name} starts beside the dead disk",
    )
    shown = life.playbooks.run(look)
    assert shown.changed == 0, shown.output[-3000:]
    assert "disk b (Input/output error) answers with errors" in " ".join(shown.output.split())
    hosts.plug_in(name, "b", DISK_BYTES)
    life.told[name]["odradek_disks"] = host_entry(hosts, name, voter=True)["odradek_disks"]
    life.playbooks.run("replace_disk", odradek_host=name, odradek_disk="b")
    life.wait_until(is_whole, "a whole cluster")
    assert all(each["online"] for each in disks_of(life, name).values())


def xfs_dies(life: Life) -> None:
    """Let a disk with XFS, as the collection formats disks, die under load.

    The node serves on, and `replace_disk` makes the cluster whole.
    """
    with life.step("a disk dies under load (XFS)"):
        _die_and_be_replaced(life, "crane", look="deploy")


def ext4_dies(life: Life) -> None:
    """Let a disk with ext4 die under load. The collection does not make ext4, so the disk is formatted and mounted by
    hand."""
    with life.step("a disk dies under load (ext4)"):
        name, number = "heron", life.hosts["heron"].number
        device = life.hosts[name].disks["b"]
        node = f"/srv/odradek/b/node-{number}"
        by_hand = (
            f"systemctl stop odradek@{number} srv-odradek-b.mount",
            f"wipefs --all --quiet {device}",
            f"mkfs.ext4 -q {device}",
            f"mount {device} /srv/odradek/b",
            f"install -d -o odradek -g odradek -m 0700 {node}",
            f"runuser -u odradek -- /opt/odradek/current/bin/odradek storage adopt /etc/odradek/node-{number}.properties",
            f"systemctl start odradek@{number}",
        )
        life.hosts.ssh(name, " && ".join(by_hand))
        life.wait_until(is_whole, "a whole cluster with an ext4")
        # `deploy` would refuse a file system that is not the collection's own.
        _die_and_be_replaced(life, name, look="status")


def no_address(life: Life) -> None:
    """Start a node while its host has no address. It is started again and again until the address is back."""
    with life.step("a host without its address for a while") as step:
        name, number = "stork", life.hosts["stork"].number
        unit = f"odradek@{number}.service"
        life.hosts.ssh(name, f"systemctl stop {unit}")
        later = "systemd-run --quiet --on-active=2 --timer-property=AccuracySec=100ms"
        life.hosts.ssh(name, f"{later} systemctl start --no-block {unit}")
        life.hosts.take_address(name)
        deadline = time.monotonic() + _SECONDS_MAX
        restarts = ("systemctl", "show", "--property=NRestarts", "--value", unit)
        while int(life.hosts.inside(name, *restarts)) < STARTS:
            assert time.monotonic() < deadline, "it is not started again and again"
            time.sleep(0.5)
        life.hosts.give_address(name)
        life.wait_until(is_whole, "a whole cluster")
        starts = life.hosts.inside(name, *restarts).strip()
        step.note = f"started again {starts} times until it had the address"


STEPS: tuple[Callable[[Life], None], ...] = (xfs_dies, ext4_dies, no_address)
