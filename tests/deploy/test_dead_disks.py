"""Dead disks as the collection's modules see them, and the systemd unit that starts a node beside a dead disk."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek.node.main import NEEDS_OPERATOR
from tests.cluster.disks.real_disks import real_disk
from tests.deploy.needs import ROOT
from tests.deploy.plugins import plugin

ROLE = ROOT / "deploy/ansible/collections/ansible_collections/odradek/cluster/roles/node"
PROPERTIES = "node-1/meta.properties"


@pytest.fixture(params=["ext4", "xfs"])
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A mounted disk with a log directory on it."""
    with real_disk(tmp_path / "disk", request.param) as disk:
        (disk.path / "node-1").mkdir()
        (disk.path / PROPERTIES).write_text("version=1\n")
        disk.sync()
        yield disk


def test_a_dead_disk_is_mounted_and_dead(mounted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that dies while it is mounted counts as mounted and as dead.

    If it counted as unmounted, `deploy` would mount it. If it counted as empty, `deploy` would format it.
    """
    mounts = plugin("module_utils", "mounts")
    facts = plugin("modules", "node_facts", monkeypatch)
    storage = plugin("modules", "storage", monkeypatch)
    point = str(mounted.path)
    assert mounts.is_mounted(point)
    assert facts.dead_disks({"b": point}, PROPERTIES) == {}
    assert storage._trouble(f"{point}/node-1") is None
    mounted.kill()
    assert mounts.is_mounted(point)
    assert facts.dead_disks({"b": point}, PROPERTIES) == {"b": "Input/output error"}
    assert storage._trouble(f"{point}/node-1") == "Input/output error"


def test_a_disk_that_is_read_only_is_dead(tmp_path: Path) -> None:
    """A read-only disk counts as dead. Its files can be read, but no node can use it."""
    mounts = plugin("module_utils", "mounts")
    with real_disk(tmp_path / "disk", "ext4") as disk:
        assert mounts.trouble_of(str(disk.path), PROPERTIES) is None, "an empty disk is sound"
        subprocess.run(["mount", "-o", "remount,ro", disk.path], check=True)
        assert mounts.trouble_of(str(disk.path), PROPERTIES) == "it is read-only"


def test_mount_points_with_odd_names(tmp_path: Path) -> None:
    """The kernel's table shows a space in a mount point as a number. The modules find such a mount point."""
    mounts = plugin("module_utils", "mounts")
    table = tmp_path / "mountinfo"
    table.write_text("36 35 8:17 / /srv/odradek/a\\040b rw,noatime - xfs /dev/sdb rw\n")
    assert mounts.is_mounted("/srv/odradek/a b", str(table))
    assert not mounts.is_mounted("/srv/odradek/a", str(table))


def test_a_device_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of an unreadable device becomes part of a sentence, and the module ends without a traceback."""
    disk = plugin("modules", "disk", monkeypatch)
    # The first page of a process is never mapped, so a read of it fails with the error of a dead device.
    assert disk._read_trouble("/proc/self/mem") == "Input/output error"
    assert disk._read_trouble("/dev/zero") is None


def test_the_unit_knows_the_nodes_exit_statuses() -> None:
    """systemd restarts a failed node without limit, unless its exit status means that only an operator can help."""
    unit = (ROLE / "templates/odradek@.service.j2").read_text().splitlines()
    assert "StartLimitIntervalSec=0" in unit
    assert f"RestartPreventExitStatus=2 {NEEDS_OPERATOR}" in unit
    paths = [line for line in unit if line.startswith("ReadWritePaths=")]
    assert paths == ["ReadWritePaths={{ node_disks_root }}"], (
        "systemd would look at each disk before the start"
    )
    assert "ReadWritePaths" not in (ROLE / "templates/node.conf.j2").read_text()
