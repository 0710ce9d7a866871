#!/usr/bin/python
"""Restarts the service of a node, and enables it for the next boot."""

from __future__ import annotations

DOCUMENTATION = r"""
module: restart
short_description: Restart the service of an Odradek node
description:
  - Forgets failed starts, enables the service, restarts it, and waits until systemd has started it.
options:
  service:
    description: Unit of the node.
    type: str
    required: true
  forget:
    description: Units, also by a pattern, whose failed starts do not count any more.
    type: str
author:
  - The Odradek authors (@odradek)
"""
EXAMPLES = r"""
- name: Restart node 1
  odradek.cluster.restart:
    service: odradek@1.service
    forget: odradek@*.service
"""
RETURN = r""" # """

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"service": {"type": "str", "required": True}, "forget": {"type": "str"}},
        supports_check_mode=True,
    )
    service, forget = module.params["service"], module.params["forget"]
    if module.check_mode:
        module.exit_json(changed=True)
    commands = [["systemctl", "reset-failed", forget]] if forget else []
    if module.run_command(["systemctl", "is-enabled", "--quiet", service])[0]:
        commands.append(["systemctl", "enable", service])
    commands.append(["systemctl", "restart", service])
    for command in commands:
        status, out, err = module.run_command(command)
        if status:
            module.fail_json(msg=f"{' '.join(command)} failed: {err.strip() or out.strip()}")
    module.exit_json(changed=True)


if __name__ == "__main__":
    main()
