#!/usr/bin/python
"""Collects the state of a host's nodes from its files and services, without asking the cluster."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_facts
short_description: State of the Odradek nodes of a host
description:
  - Reports for each node whether it runs (a crash loop does not count), whether its directories are formatted and mounted,
    and whether its process was started with the present files.
options:
  nodes:
    description: Nodes of the plan, with C(id) and C(disks).
    type: list
    elements: dict
    required: true
  root:
    description: Directory of the releases.
    type: path
    default: /opt/odradek
  disks_root:
    description: Directory of the mount points.
    type: path
    default: /srv/odradek
  before:
    description: Directory of the state before an unfinished roll-out.
    type: path
    default: /var/lib/odradek-before
  checks:
    description:
      - What to look at on the host itself. C(nodes) are those of the plan on this host, C(peers) those on other hosts, each
        with C(id), C(address) and C(ports). C(asked_at) is the clock of the control machine, which comes back with the
        answer.
    type: dict
  connect_seconds:
    description: How long a connection to a peer may take.
    type: float
    default: 3
author:
  - The Odradek authors (@odradek)
"""
EXAMPLES = r"""
- name: Look
  odradek.cluster.node_facts:
    nodes: [{id: 1, disks: [a, b]}]
"""
RETURN = r"""
founded:
  description: Whether this host has ever belonged to a complete cluster.
  type: bool
  returned: always
current:
  description: Name of the release that runs.
  type: str
  returned: always
previous:
  description: Name of the release that ran before.
  type: str
  returned: always
before:
  description:
    - The state before an unfinished roll-out, with C(current), C(previous) and C(paths), the files that differ now. Null if
      no roll-out is unfinished.
  type: dict
  returned: always
releases:
  description: Names of the releases that are installed.
  type: list
  elements: str
  returned: always
no_room:
  description: A sentence where there is too little room for one more release; null where there is enough.
  type: str
  returned: always
identities:
  description: Digest and commit of each release that is installed, by its name.
  type: dict
  returned: always
nodes:
  description: >-
    One dictionary for each node. C(unmounted) names its disks that are not mounted, C(dead) its disks that answer with
    errors, and C(unformatted) its working disks without a log directory of the node. C(last_words) is the last log line
    of a node that has ended for good.
  type: list
  elements: dict
  returned: always
checks:
  description: Facts of the host, for C(odradek.cluster.verdict).
  type: dict
  returned: with C(checks)
  contains:
    system:
      description: Name and version, as in /etc/os-release.
      type: str
    memory_bytes:
      description: Memory of the host.
      type: int
    asked_at:
      description: The clock of the control machine, as it was given.
      type: float
    clock_seconds:
      description: Its clock, in seconds since 1970.
      type: float
    synchronized:
      description: Whether an NTP client keeps the clock.
      type: bool
    machine:
      description: The machine's id and its addresses; the same for one machine under two names.
      type: list
      elements: str
    taken:
      description: Ports of the nodes at which another program listens, with C(port) and C(by).
      type: list
      elements: dict
    listening:
      description: Ports at which the nodes of this host listen.
      type: list
      elements: int
    resolved:
      description: Addresses by each name of the plan; empty for one that has none.
      type: dict
    absent:
      description: Addresses of the nodes that no interface of this host has.
      type: list
      elements: str
    unreached:
      description: Peers that did not accept a connection, with C(id), C(address), C(port) and C(why).
      type: list
      elements: dict
    running:
      description: Ids of the nodes that run here.
      type: list
      elements: int
    cluster_id:
      description: Id of the cluster that this host belongs to; none if it belongs to none.
      type: str
    directories:
      description: Log directories that nodes have by their present files, with C(node), C(path) and C(mounted).
      type: list
      elements: dict
"""

import json
import os
import subprocess
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.odradek.cluster.plugins.module_utils.host_checks import checks
from ansible_collections.odradek.cluster.plugins.module_utils.links import extras_of, linked, room_problem
from ansible_collections.odradek.cluster.plugins.module_utils.manifest import MANIFEST, identity_of
from ansible_collections.odradek.cluster.plugins.module_utils.mounts import is_mounted, trouble_of


def identities(root: str) -> dict[str, dict]:
    """Return digest and commit of each installed release, by name."""
    versions = os.path.join(root, "versions")
    names = sorted(os.listdir(versions)) if os.path.isdir(versions) else []
    found = {}
    for name in names:
        try:
            with open(os.path.join(versions, name, MANIFEST), encoding="utf-8") as file:
                found[name] = identity_of(json.load(file))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            # The manifest is written last. Without it the installation was interrupted, and must be repeated.
            continue
    return found


_SETTLED_SECONDS = 30
"""The seconds after which a process that was restarted after a failure counts as running."""


def _is_active(unit: str) -> bool:
    """True if the service runs and does not fail again and again."""
    shown = subprocess.run(
        ["systemctl", "show", "--property=ActiveState,NRestarts,ExecMainStartTimestampMonotonic", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    return runs(shown.stdout, time.monotonic())


def runs(shown: str, now: float) -> bool:
    """Decide by the properties that systemd shows whether a service runs. `now` is in seconds of the monotonic clock,
    as in systemd.
    """
    facts = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    if facts.get("ActiveState") != "active":
        return False
    up_seconds = now - int(facts.get("ExecMainStartTimestampMonotonic") or 0) / 1e6
    return int(facts.get("NRestarts") or 0) == 0 or up_seconds >= _SETTLED_SECONDS


def last_words(unit: str) -> str:
    """Return the last line of a service that has ended with a failure; empty if systemd restarts it, or if it printed
    none.
    """
    state = subprocess.run(["systemctl", "is-failed", unit], capture_output=True, text=True, check=False)
    if state.stdout.strip() != "failed":
        return ""
    command = ["journalctl", "--unit", unit, "--lines", "20", "--output", "cat"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    said = [line.removeprefix("odradek: ") for line in lines if line.startswith("odradek: ")]
    return said[-1] if said else ""


def _before(directory: str) -> dict | None:
    """Return the releases that the module `before` has kept, and its kept files that differ from the present files;
    None if nothing is kept.
    """
    try:
        with open(os.path.join(directory, "releases.json"), encoding="utf-8") as file:
            links = json.load(file)
    except FileNotFoundError:
        return None
    paths = []
    for name in sorted(os.listdir(directory)):
        path = name.removesuffix(".absent").replace("%", "/")
        if not path.startswith("/") or name.endswith(".new"):
            continue
        if name.endswith(".absent"):
            differs = os.path.exists(path)
        else:
            differs = _read(path) != _read(os.path.join(directory, name))
        if differs:
            paths.append(path)
    return {**{key: value and os.path.basename(value) for key, value in links.items()}, "paths": paths}


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _is_stale(node: int) -> bool:
    """True if a file that the process read at its start has changed since, or if the list of these files is missing."""
    started = f"/run/odradek-{node}/started"
    if not os.path.exists(started):
        return True
    done = subprocess.run(
        ["sha256sum", "--check", "--status", started], check=False, stderr=subprocess.DEVNULL
    )
    return done.returncode != 0


def dead_disks(points: dict[str, str], file: str) -> dict[str, str]:
    """Return the mounted disks that do not work, each with its error."""
    troubles = {disk: trouble_of(point, file) for disk, point in points.items()}
    return {disk: trouble for disk, trouble in troubles.items() if trouble is not None}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "nodes": {"type": "list", "elements": "dict", "required": True},
            "root": {"type": "path", "default": "/opt/odradek"},
            "disks_root": {"type": "path", "default": "/srv/odradek"},
            "before": {"type": "path", "default": "/var/lib/odradek-before"},
            "checks": {"type": "dict"},
            "connect_seconds": {"type": "float", "default": 3},
        },
        supports_check_mode=True,
    )
    root, disks_root = module.params["root"], module.params["disks_root"]
    nodes = []
    for node in module.params["nodes"]:
        points = {disk: os.path.join(disks_root, disk) for disk in node["disks"]}
        unmounted = [disk for disk, point in points.items() if not is_mounted(point)]
        properties = os.path.join(f"node-{node['id']}", "meta.properties")
        dead = dead_disks(
            {disk: point for disk, point in points.items() if disk not in unmounted}, properties
        )
        unformatted = [
            disk
            for disk, point in points.items()
            if disk not in dead and not os.path.exists(os.path.join(point, properties))
        ]
        nodes.append(
            {
                "id": node["id"],
                "active": _is_active(f"odradek@{node['id']}.service"),
                "last_words": last_words(f"odradek@{node['id']}.service"),
                "stale": _is_stale(node["id"]),
                "unmounted": unmounted,
                "dead": [f"{disk} ({reason})" for disk, reason in dead.items()],
                "unformatted": unformatted,
                "blank": len(unformatted) == len(points),
            }
        )
    installed = identities(root)
    more = {}
    if module.params["checks"]:
        more["checks"] = checks(module.params["checks"], module.params["connect_seconds"])
    module.exit_json(
        changed=False,
        founded=os.path.exists("/etc/odradek/founded"),
        current=linked(root, "current"),
        previous=linked(root, "previous"),
        releases=list(installed),
        extras={name: extras_of(root, name) for name in installed},
        no_room=room_problem(root),
        identities=installed,
        before=_before(module.params["before"]),
        nodes=nodes,
        **more,
    )


if __name__ == "__main__":
    main()
