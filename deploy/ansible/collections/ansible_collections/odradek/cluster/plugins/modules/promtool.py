#!/usr/bin/python
"""Checks files for Prometheus with promtool, before they are written to their places."""

from __future__ import annotations

DOCUMENTATION = r"""
module: promtool
short_description: Check files for Prometheus
description:
  - Writes the files into a temporary directory, and runs C(promtool check rules) and C(promtool check config) there.
  - With C(config), checks this configuration of Prometheus in place. Changes nothing.
  - Where promtool is missing, nothing is checked, and C(checked) is false.
options:
  files:
    description: The files, each with C(name) and C(content).
    type: list
    elements: dict
    default: []
  rules:
    description: Name of the file with rules.
    type: str
    default: odradek-rules.yml
  scrape:
    description: Name of the file with the scrape job.
    type: str
    default: scrape.yml
  config:
    description: A configuration of Prometheus on this host, to check as a whole.
    type: path
author:
  - The Odradek authors (@odradek)
"""
EXAMPLES = r"""
- name: Check the rules
  odradek.cluster.promtool:
    config: /etc/prometheus/prometheus.yml
"""
RETURN = r"""
checked:
  description: Whether promtool is there and has found no mistake.
  type: bool
  returned: always
"""

import os
import tempfile

from ansible.module_utils.basic import AnsibleModule

_CONFIG = "prometheus.yml"


def check(module: AnsibleModule, promtool: str, *words: str) -> None:
    """Run promtool. Fails with what it says."""
    status, out, err = module.run_command([promtool, "check", *words])
    if status:
        module.fail_json(msg=f"promtool check {' '.join(words)}: {err.strip() or out.strip()}")


def check_files(module: AnsibleModule, promtool: str) -> None:
    """Check the files together, in a configuration that has only them."""
    params = module.params
    with tempfile.TemporaryDirectory() as directory:
        config = f"rule_files: [{params['rules']}]\n"
        for file in params["files"]:
            with open(os.path.join(directory, os.path.basename(file["name"])), "w", encoding="utf-8") as out:
                out.write(file["content"])
            if file["name"] == params["scrape"]:
                config += file["content"]
        path = os.path.join(directory, _CONFIG)
        with open(path, "w", encoding="utf-8") as out:
            out.write(config)
        check(module, promtool, "rules", os.path.join(directory, params["rules"]))
        check(module, promtool, "config", path)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "list", "elements": "dict", "default": []},
            "rules": {"type": "str", "default": "odradek-rules.yml"},
            "scrape": {"type": "str", "default": "scrape.yml"},
            "config": {"type": "path"},
        },
        supports_check_mode=True,
    )
    promtool = module.get_bin_path("promtool")
    if promtool is not None and module.params["files"]:
        check_files(module, promtool)
    if promtool is not None and module.params["config"]:
        check(module, promtool, "config", module.params["config"])
    module.exit_json(changed=False, checked=promtool is not None)


if __name__ == "__main__":
    main()
