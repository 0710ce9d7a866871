"""Computes what Prometheus must know of a cluster: the targets, and the scrape job for them.

PURE: the same plan gives the same files. The alert rules and the dashboards come from the release (module
`monitoring`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

DOCUMENTATION = r"""
name: monitoring
short_description: Files for Prometheus about a cluster
description:
  - Takes the plan of C(odradek.cluster.layout) and returns the files C(targets.json) and C(scrape.yml).
  - C(scrape_problem) returns a sentence if the nodes cannot be scraped by one job, and an empty text otherwise.
options:
  _input:
    description: The plan of the cluster.
    type: dict
    required: true
  job:
    description: Name of the scrape job.
    type: str
    required: true
  user:
    description: The user as whom Prometheus logs in, if the pages ask for a login.
    type: str
"""
RETURN = r"""
_value:
  description: The files, each with C(name) and C(content).
  type: list
  elements: dict
"""

TARGETS = "targets.json"
SCRAPE = "scrape.yml"
AUTHORITY = "authority.pem"
PASSWORD = "scraper.password"
_NOTE = "# Written by the playbook odradek.cluster.monitoring.\n"


def monitoring_files(plan: Mapping[str, Any], job: str, user: str = "") -> list[dict[str, str]]:
    """Return the files about the nodes of a plan. Their paths are relative to the directory that all files share."""
    return [
        {"name": TARGETS, "content": json.dumps(_targets(plan), indent=2) + "\n"},
        {"name": SCRAPE, "content": _scrape(plan, job, user)},
    ]


def scrape_problem(plan: Mapping[str, Any], user: str = "") -> str:
    """Return a sentence if Prometheus could not read a page of the plan's nodes."""
    asking = sorted(node["host"] for node in plan["nodes"] if node["metrics"]["login"])
    if asking and not user:
        return (
            f"The metrics pages of {', '.join(dict.fromkeys(asking))} ask for a login: name a user of odradek_users in "
            "odradek_monitoring_user, with the right to describe the cluster."
        )
    plain = sorted(node["host"] for node in plan["nodes"] if node["metrics"]["scheme"] == "http")
    if user and plain:
        return (
            f"The metrics pages of {', '.join(dict.fromkeys(plain))} are not encrypted, so no password may go there: set "
            "odradek_metrics_access to login on all hosts, or remove odradek_monitoring_user."
        )
    return ""


def _targets(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a group of targets for each node, in the format of Prometheus' file_sd."""
    return [
        {
            "targets": [_reachable(node)],
            "labels": {
                "cluster": plan["cluster_id"],
                "host": node["host"],
                "__scheme__": node["metrics"]["scheme"],
            },
        }
        for node in plan["nodes"]
    ]


def _reachable(node: Mapping[str, Any]) -> str:
    """Return the address of a node's metrics page. A page on every interface is reached at the node's address."""
    host, _, port = node["metrics"]["target"].rpartition(":")
    host = host.strip("[]")
    if host in ("", "0.0.0.0", "::"):
        host = str(node["address"])
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _scrape(plan: Mapping[str, Any], job: str, user: str) -> str:
    lines = [
        "scrape_configs:",
        f"  - job_name: {json.dumps(job)}",
        f"    file_sd_configs: [{{files: [{TARGETS}]}}]",
    ]
    if any(node["metrics"]["scheme"] == "https" for node in plan["nodes"]):
        lines.append(f"    tls_config: {{ca_file: {AUTHORITY}}}")
    if user:
        lines.append(f"    basic_auth: {{username: {json.dumps(user)}, password_file: {PASSWORD}}}")
    return _NOTE + "".join(f"{line}\n" for line in lines)


class FilterModule:
    """The filters of this file, in a class with the name that Ansible requires."""

    def filters(self) -> dict[str, Any]:
        return {"monitoring_files": monitoring_files, "scrape_problem": scrape_problem}
