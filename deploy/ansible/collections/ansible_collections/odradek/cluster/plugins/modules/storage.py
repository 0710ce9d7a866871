#!/usr/bin/python
"""Makes and formats the log directories of a node once, each on its own mounted disk."""

from __future__ import annotations

DOCUMENTATION = r"""
module: storage
short_description: Format the log directories of an Odradek node
description:
  - Makes the directories on mounted disks only, and runs C(odradek storage format) for those that are not formatted.
options:
  node:
    description: Id of the node.
    type: int
    required: true
  directories:
    description: The node's log directories, each directly below a mount point.
    type: list
    elements: path
    required: true
  cluster_id:
    description: Id of the cluster.
    type: str
    required: true
  initial_controllers:
    description: The first voters of a new cluster. Not given for a node that joins later.
    type: str
  user:
    description: The user that owns the directories.
    type: str
    default: odradek
  root:
    description: Directory of the releases.
    type: path
    default: /opt/odradek
author:
  - The Odradek authors (@odradek)
"""
EXAMPLES = r"""
- name: Format
  odradek.cluster.storage:
    node: 1
    directories: [/srv/odradek/a/node-1]
    cluster_id: 4L6g3nShT-eMCtK--X86sw
"""
RETURN = r"""
formatted:
  description: Directories that were formatted now.
  type: list
  elements: str
  returned: always
"""

import json
import os
import pwd

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.odradek.cluster.plugins.module_utils.mounts import is_mounted, trouble_of


def _trouble(directory: str) -> str | None:
    """Return the error of the disk of a log directory; None if it works or is not mounted."""
    point, name = os.path.split(directory)
    return trouble_of(point, os.path.join(name, "meta.properties")) if is_mounted(point) else None


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "int", "required": True},
            "directories": {"type": "list", "elements": "path", "required": True},
            "cluster_id": {"type": "str", "required": True},
            "initial_controllers": {"type": "str"},
            "user": {"type": "str", "default": "odradek"},
            "root": {"type": "path", "default": "/opt/odradek"},
        },
        supports_check_mode=True,
    )
    params = module.params
    sound = [path for path in params["directories"] if _trouble(path) is None]
    new = [path for path in sound if not os.path.exists(os.path.join(path, "meta.properties"))]
    if not new or module.check_mode:
        module.exit_json(changed=bool(new), formatted=new)
    for path in new:
        if not is_mounted(os.path.dirname(path)):
            module.fail_json(
                msg=f"Node {params['node']} was not formatted: no disk is mounted at {os.path.dirname(path)}; "
                "see `systemctl status` of that mount."
            )
    owner = pwd.getpwnam(params["user"])
    for path in new:
        os.makedirs(path, mode=0o700, exist_ok=True)
        os.chown(path, owner.pw_uid, owner.pw_gid)
    voters = ["--no-initial-controllers"]
    if params["initial_controllers"]:
        voters = ["--initial-controllers", params["initial_controllers"]]
    command = ["runuser", "-u", params["user"], "--", os.path.join(params["root"], "current/bin/odradek")]
    command += [
        "storage",
        "format",
        "--json",
        "--ignore-formatted",
        f"--cluster-id={params['cluster_id']}",
        *voters,
    ]
    status, out, err = module.run_command([*command, f"/etc/odradek/node-{params['node']}.properties"])
    if status:
        module.fail_json(msg=f"Node {params['node']} was not formatted: {err.strip() or out.strip()}")
    module.exit_json(changed=True, formatted=json.loads(out)["directories"])


if __name__ == "__main__":
    main()
