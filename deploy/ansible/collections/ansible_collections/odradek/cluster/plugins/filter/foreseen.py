"""Sentences about the changes that a real run would make, and about changes that check mode cannot foresee. PURE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.odradek.cluster.plugins.filter.releases import extras_lacking

DOCUMENTATION = r"""
name: foreseen
short_description: What a run would change
description:
  - Takes the variables of a host after a run in check mode, and returns C(differences) and C(unforeseen), both in sentences.
options:
  _input:
    description: Variables of the host.
    type: dict
    required: true
  plan:
    description: The plan of C(odradek.cluster.layout).
    type: dict
    required: true
"""
RETURN = r"""
_value:
  description: C(differences) lists what a run would change. C(unforeseen) lists changes that only a real run can find.
  type: dict
"""


def foreseen(values: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return two lists of sentences: the changes that a run would make to a host, and changes that check mode cannot
    foresee.
    """
    state = values.get("odradek_host_state") or {}
    if "nodes" not in state:
        return {"differences": [], "unforeseen": ["this host was not examined."]}
    return {
        "differences": [*_prepared(values), *_nodes(values, state, plan)],
        "unforeseen": list(_unforeseen(values, state)),
    }


def foreseen_votes(plan: Mapping[str, Any], live: Mapping[str, Any]) -> list[str]:
    """Return sentences about the nodes that a run would make voters, or whose vote it would remove."""
    quorum = (live.get("status") or {}).get("quorum")
    if not quorum:
        return []
    voters = quorum["voters"]
    given = [f"node {node} would get a vote" for node in plan["voters"] if node not in voters]
    return [*given, *(f"node {node} would lose its vote" for node in voters if node not in plan["voters"])]


def _prepared(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield changes of the host and its disks, as the roles' tasks have reported them."""
    if _is_changed(values, "host_installed"):
        yield "packages would be installed"
    if _is_changed(values, "host_user_made"):
        yield "the nodes' user would be made"
    for name in ("host_written", "disks_written"):
        for path in (values.get(name) or {}).get("paths") or ():
            yield f"{path} would be written"
    for disk in (values.get("disks_found") or {}).get("disks") or ():
        if disk["formatted"]:
            yield f"disk {disk['name']} ({disk['device']}) would be formatted"
        elif not disk["mounted"]:
            yield f"disk {disk['name']} ({disk['device']}) would be mounted"
    if _is_changed(values, "node_made"):
        yield "certificates would be made"


def _is_changed(values: Mapping[str, Any], name: str) -> bool:
    return bool((values.get(name) or {}).get("changed"))


def _nodes(values: Mapping[str, Any], state: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield changes of the release, of configuration files and of running nodes."""
    release = str(values.get("odradek_release") or "")
    if release and release not in state["releases"]:
        yield f"release {release} would be installed"
    elif extras_lacking(release, state, values.get("odradek_mine") or ()):
        yield f"the packages of the console would be added to release {release}"
    if release and state["current"] != release:
        yield f"release {release} would run in place of {state['current'] or 'none'}"
    paths = (values.get("node_differences") or {}).get("paths") or ()
    for path in paths:
        yield f"{path} would be written"
    begins = not state["founded"]
    # If the cluster does not run yet, all nodes start together, and none is restarted.
    running = (values.get("node_touched") or {}).get("running") or ()
    for node in state["nodes"]:
        if node["unformatted"]:
            yield f"node {node['id']} would begin with empty directories on {', '.join(node['unformatted'])}"
        if begins or not node["active"]:
            yield f"node {node['id']} would be started"
        elif node["id"] in running:
            yield f"node {node['id']} would be restarted"


def _unforeseen(values: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences about changes that only a real run can find."""
    release = str(values.get("odradek_release") or "")
    if release and release not in state["releases"]:
        yield (
            f"release {release} is not installed, so its code has not checked the settings; a real run checks them before it starts a node"
        )
    if not state["founded"]:
        yield "no node listens on this host yet, so it is not known whether other hosts can reach it"
    if any(disk["formatted"] for disk in (values.get("disks_found") or {}).get("disks") or ()):
        yield "the mount units of new disks are not shown, because they contain a UUID that exists only after formatting"


class FilterModule:
    """The filters of this file, in a class with the name that Ansible requires."""

    def filters(self) -> dict[str, Any]:
        return {"foreseen": foreseen, "foreseen_votes": foreseen_votes}
