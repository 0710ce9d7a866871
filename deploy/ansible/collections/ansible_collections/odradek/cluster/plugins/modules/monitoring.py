#!/usr/bin/python
"""Asks an installed release for its alert rules and dashboards."""

from __future__ import annotations

DOCUMENTATION = r"""
module: monitoring
short_description: Alert rules and dashboards of a release
description:
  - Runs C(odradek generate) of an installed release, and returns what it writes. Changes nothing.
options:
  odradek:
    description: Path of the command.
    type: path
    default: /opt/odradek/current/bin/odradek
  job:
    description: The scrape job of the nodes.
    type: str
    default: odradek
  runbooks:
    description: Address of a copy of docs/operations.md, for links of alerts. By default that of the release.
    type: str
    default: ""
author:
  - The Odradek authors (@odradek)
"""
EXAMPLES = r"""
- name: Ask for rules and dashboards
  odradek.cluster.monitoring:
    job: odradek
"""
RETURN = r"""
rules:
  description: The file of alert rules, with C(name) and C(content).
  type: dict
  returned: always
dashboards:
  description: The dashboards, each with C(name) and C(content).
  type: list
  elements: dict
  returned: always
"""

import json

from ansible.module_utils.basic import AnsibleModule


def files_of(module: AnsibleModule, *words: str) -> list[dict[str, str]]:
    """Return the files that `odradek generate` writes for these words."""
    return [{"name": each["name"], "content": each["text"]} for each in answer_of(module, *words)["files"]]


def answer_of(module: AnsibleModule, *words: str) -> dict:
    """Return the JSON object that `odradek generate` answers. Fails with its own words."""
    command = [module.params["odradek"], "generate", *words, "--json"]
    status, out, err = module.run_command(command, environ_update={"PYTHONDONTWRITEBYTECODE": "1"})
    try:
        found: dict = json.loads(out)
    except ValueError:
        found = {}
    if status or not found:
        said = err.strip() or out.strip() or f"status {status}"
        module.fail_json(msg=f"This release cannot write rules and dashboards: {said}")
    return found


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "odradek": {"type": "path", "default": "/opt/odradek/current/bin/odradek"},
            "job": {"type": "str", "default": "odradek"},
            "runbooks": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    job, runbooks = module.params["job"], module.params["runbooks"]
    words = ["--job", job, *(["--runbooks", runbooks] if runbooks else [])]
    (rules,) = files_of(module, "prometheus-rules", *words)
    names = [each["name"] for each in answer_of(module, "grafana-dashboard")["dashboards"]]
    dashboards = [each for name in names for each in files_of(module, "grafana-dashboard", name)]
    module.exit_json(changed=False, rules=rules | {"name": "odradek-rules.yml"}, dashboards=dashboards)


if __name__ == "__main__":
    main()
