#!/usr/bin/python
"""The state of the nodes of a host, read from the host's files and services: no cluster is asked."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_facts
short_description: State of the Odradek nodes of a host
description:
  - Tells of each node whether it runs, whether its directories are formatted and mounted, and whether its process was
    started with the files that are there now.
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
  description: Whether this host has belonged to a cluster that was whole.
  type: bool
  returned: always
current:
  description: Name of the release that runs.
  type: str
  returned: always
previous:
  description: Name of the one before.
  type: str
  returned: always
releases:
  description: Names of the releases that are installed.
  type: list
  elements: str
  returned: always
identities:
  description: Digest and commit of each release that is installed, by its name.
  type: dict
  returned: always
nodes:
  description: One dictionary for each node.
  type: list
  elements: dict
  returned: always
"""

import json
import os
import subprocess

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.odradek.cluster.plugins.module_utils.manifest import MANIFEST, identity_of


def _link(root: str, name: str) -> str | None:
    try:
        return os.path.basename(os.readlink(os.path.join(root, name)))
    except OSError:
        return None


def identities(root: str) -> dict[str, dict]:
    """Return digest and commit of each release that is installed, by name."""
    versions = os.path.join(root, "versions")
    names = sorted(os.listdir(versions)) if os.path.isdir(versions) else []
    found = {}
    for name in names:
        try:
            with open(os.path.join(versions, name, MANIFEST), encoding="utf-8") as file:
                found[name] = identity_of(json.load(file))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            # The manifest comes last: without it the installation was interrupted, and begins anew.
            continue
    return found


def _is_active(unit: str) -> bool:
    done = subprocess.run(["systemctl", "is-active", "--quiet", unit], check=False)
    return done.returncode == 0


def _is_stale(node: int) -> bool:
    """True if a file that the process was started with has changed since, or their list is missing."""
    started = f"/run/odradek-{node}/started"
    if not os.path.exists(started):
        return True
    done = subprocess.run(
        ["sha256sum", "--check", "--status", started], check=False, stderr=subprocess.DEVNULL
    )
    return done.returncode != 0


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "nodes": {"type": "list", "elements": "dict", "required": True},
            "root": {"type": "path", "default": "/opt/odradek"},
            "disks_root": {"type": "path", "default": "/srv/odradek"},
        },
        supports_check_mode=True,
    )
    root, disks_root = module.params["root"], module.params["disks_root"]
    nodes = []
    for node in module.params["nodes"]:
        points = {disk: os.path.join(disks_root, disk) for disk in node["disks"]}
        unmounted = [disk for disk, point in points.items() if not os.path.ismount(point)]
        unformatted = [
            disk
            for disk, point in points.items()
            if not os.path.exists(os.path.join(point, f"node-{node['id']}", "meta.properties"))
        ]
        nodes.append(
            {
                "id": node["id"],
                "active": _is_active(f"odradek@{node['id']}.service"),
                "stale": _is_stale(node["id"]),
                "unmounted": unmounted,
                "unformatted": unformatted,
                "blank": len(unformatted) == len(points),
            }
        )
    installed = identities(root)
    module.exit_json(
        changed=False,
        founded=os.path.exists("/etc/odradek/founded"),
        current=_link(root, "current"),
        previous=_link(root, "previous"),
        releases=list(installed),
        identities=installed,
        nodes=nodes,
    )


if __name__ == "__main__":
    main()
