#!/usr/bin/python
"""Checks the properties of nodes, by the code of the release that will run with them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: settings
short_description: Check properties of Odradek nodes before a node is started with them
description:
  - Passes each properties file to C(odradek storage check-config) of a release, by standard input. Nothing is written.
  - If the release is not installed or does not have this command, nothing is checked, and C(judged) is false.
options:
  nodes:
    description: C(id) and C(content), the properties, of each node.
    type: list
    elements: dict
    required: true
    suboptions:
      id:
        description: Id of the node.
        type: int
        required: true
      content:
        description: Its properties.
        type: str
        required: true
  odradek:
    description: Path of the release's command.
    type: path
    required: true
  unknown:
    description: Keys that the release does not know, but that the operator has set on purpose.
    type: list
    elements: str
    default: []
  user:
    description: The user as whom the node runs. This user must be able to read the files that the properties name.
    type: str
    default: odradek
author:
  - The Odradek authors (@odradek)
"""
EXAMPLES = r"""
- name: Judge
  odradek.cluster.settings:
    odradek: /opt/odradek/versions/0.3.0/bin/odradek
    nodes:
      - {id: 1, content: "node.id=1\n"}
"""
RETURN = r"""
judged:
  description: Whether the release could judge.
  type: bool
  returned: always
problems:
  description: By the id of a node, why it would not start, and keys that mean nothing.
  type: dict
  returned: always
"""

import json
import os
import pwd

from ansible.module_utils.basic import AnsibleModule

_USAGE = 2


class _Module(AnsibleModule):  # type: ignore[misc]  # Ansible has no types
    """A module that never passes properties to the host's journal or to C(-vvv), because they may have secrets."""

    def _log_invocation(self) -> None:
        """Log no arguments, because they may have secrets."""


def sentences_of(document: dict) -> list[str]:
    """Return the problems in an answer of `odradek storage check-config --json`."""
    return [*document["problems"], *(each["problem"] for each in document["unknown"])]


def main() -> None:
    """Run the module."""
    module = _Module(
        argument_spec={
            "nodes": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "id": {"type": "int", "required": True},
                    "content": {"type": "str", "required": True, "no_log": True},
                },
            },
            "odradek": {"type": "path", "required": True},
            "unknown": {"type": "list", "elements": "str", "default": []},
            "user": {"type": "str", "default": "odradek"},
        },
        supports_check_mode=True,
    )
    params = module.params
    if not os.path.exists(params["odradek"]):
        module.exit_json(changed=False, judged=False, problems={})
    command = [params["odradek"], "storage", "check-config", "--json"]
    for key in params["unknown"]:
        command += ["--allow-unknown", key]
    # A new host does not have the user of the nodes yet. On such a host the command runs as root.
    if params["user"] in {each.pw_name for each in pwd.getpwall()}:
        command = ["runuser", "-u", params["user"], "--", *command]
    problems = {}
    for node in params["nodes"]:
        status, out, err = module.run_command(
            [*command, "-"], data=node["content"], environ_update={"PYTHONDONTWRITEBYTECODE": "1"}
        )
        if status == _USAGE:
            module.exit_json(changed=False, judged=False, problems={})
        try:
            problems[str(node["id"])] = sentences_of(json.loads(out))
        except ValueError:
            module.fail_json(msg=f"{params['odradek']} cannot judge settings: {err.strip() or out.strip()}")
    module.exit_json(changed=False, judged=True, problems=problems)


if __name__ == "__main__":
    main()
