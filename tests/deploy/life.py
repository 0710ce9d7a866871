"""The life of a cluster, step by step, under load."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from tests.deploy.hosts import Hosts, hosts_in
from tests.deploy.load import Load
from tests.deploy.needs import ROOT
from tests.deploy.playbooks import Playbooks

DISK_BYTES = 1 << 30
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"


def inventory_of(hosts: Hosts, names: list[str], voters: int = 3) -> dict[str, Any]:
    """What the operator writes."""
    told = {}
    for index, name in enumerate(names):
        host = hosts[name]
        told[name] = {
            "ansible_host": host.address,
            "odradek_node_id": host.number,
            "odradek_voter": index < voters,
            "odradek_rack": f"r{host.number}",
            "odradek_disks": [{"name": disk, "device": device} for disk, device in host.disks.items()],
        }
    return {
        "vars": {
            "odradek_cluster_id": CLUSTER_ID,
            "odradek_release": "0.1.0",
            "ansible_user": "root",
            "ansible_python_interpreter": "/usr/bin/python3",
            "disks_bytes_min": 300_000_000,
            "host_clock_synchronized": False,
            "odradek_settings": {},
        },
        "hosts": told,
    }


def build_release(out: Path, version: str) -> None:
    """A release as `make release` makes it."""
    subprocess.run(
        [sys.executable, str(ROOT / "deploy" / "build_release.py"), "--out", str(out), "--version", version], check=True
    )


def live(work: Path, form: str) -> int:
    with hosts_in(work) as hosts:
        t = time.monotonic()
        for name in ("stork", "heron", "crane"):
            hosts.make(name, ("a", "b"), DISK_BYTES)
        hosts.boot("stork", "heron", "crane")
        print("booted", time.monotonic() - t)
        play = Playbooks(hosts, inventory_of(hosts, ["stork", "heron", "crane"]), Path("/tmp/rel"), work / "playbooks.log")
        try:
            out = play.run("deploy")
            print(out.output[-3000:], out.seconds, out.changed)
            out = play.run("deploy")
            print(out.output[-3000:], out.seconds, out.changed)
        finally:
            print(hosts.ssh("stork", "systemctl status odradek@1 --no-pager -n 20; findmnt -t xfs; systemctl --failed --no-pager", check=False))
    return 0
