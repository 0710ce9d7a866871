#!/usr/bin/python
"""Collects facts of a running cluster: its id, its members, and the log directories of its brokers."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_facts
short_description: Members and log directories of an Odradek cluster
description:
  - Runs C(odradek) once on the host. If the cluster does not answer, the module does not fail, but C(trouble) says why.
extends_documentation_fragment: [odradek.cluster.cluster]
author:
  - The Odradek authors (@odradek)
"""
EXAMPLES = r"""
- name: Ask
  odradek.cluster.cluster_facts:
    bootstrap: 192.0.2.1:9092,192.0.2.2:9092
"""
RETURN = r"""
status:
  description: The answer of C(odradek cluster status --json); none if there was no answer.
  type: dict
  returned: always
directories:
  description: Log directories of the brokers that answer, with C(broker), C(path), C(online), C(released) and C(replicas).
  type: list
  elements: dict
  returned: always
trouble:
  description: Why there was no answer; empty if there was.
  type: str
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.odradek.cluster.plugins.module_utils.asking import ask_together


def directories_of(answer: dict) -> list[dict]:
    """Return the directories in an answer of `odradek disk list --json`."""
    return [
        {
            "broker": broker["broker"],
            "path": each["path"],
            "online": each["online"],
            "released": each["released"],
            "replicas": len(each["replicas"]),
        }
        for broker in answer["brokers"]
        for each in broker["directories"]
    ]


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "bootstrap": {"type": "str", "required": True},
            "odradek": {"type": "path", "default": "/opt/odradek/current/bin/odradek"},
        },
        supports_check_mode=True,
    )
    odradek, bootstrap = module.params["odradek"], module.params["bootstrap"]
    questions = [("cluster", "status"), ("disk", "list")]
    (status, trouble), (answer, _) = ask_together(odradek, bootstrap, questions)
    answer = answer if status is not None else None
    directories = directories_of(answer) if answer is not None else []
    module.exit_json(changed=False, status=status, directories=directories, trouble=trouble)


if __name__ == "__main__":
    main()
