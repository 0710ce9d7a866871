"""Computes the order of a roll-out: which nodes a change affects, and which hosts are restarted together.

PURE: the same facts give the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.odradek.cluster.plugins.module_utils.faces import CONSOLE_KEYS

DOCUMENTATION = r"""
name: roll_out
short_description: Order of a roll-out over the hosts of an Odradek cluster
description:
  - Nodes that are down come first, all together. Then come the running nodes, host by host or rack by rack, and the
    active controller last.
options:
  _input:
    description: Of each host, in the order of the inventory, its C(host), C(rack), C(voters), C(differs), C(down) and C(running).
    type: list
    required: true
  leader:
    description: Node of the active controller.
    type: int
  by_rack:
    description: Restart the hosts of a rack together; hosts that vote, one at a time.
    type: bool
    default: false
"""
RETURN = r"""
_value:
  description: >-
    C(down) and C(order) are hosts, C(batches) says how many of C(order) are restarted together, C(steps) are the nodes of
    each restart.
  type: dict
"""


def touched(state: Mapping[str, Any], paths: Iterable[str], release_differs: bool) -> dict[str, list[int]]:
    """Return the ids of a host's nodes that must be started (C(down)) or restarted (C(running)).

    `state` is the result of the module node_facts; `paths` are the files that will change.
    """
    found: dict[str, list[int]] = {"down": [], "running": []}
    changed = list(paths)
    for node in state["nodes"]:
        if not node["active"]:
            found["down"].append(node["id"])
        elif node["stale"] or node["unformatted"] or release_differs or _is_among(changed, node["id"]):
            found["running"].append(node["id"])
    return found


def _is_among(paths: Sequence[str], node: int) -> bool:
    """True if one of the files is read when the node's process starts."""
    ends = (
        f"/node-{node}.properties",
        f"/odradek@{node}.service.d/node.conf",
        "/odradek@.service",
        CONSOLE_KEYS,
    )
    return any(path.endswith(ends) for path in paths)


def roll_out(
    hosts: Sequence[Mapping[str, Any]], leader: int | None = None, by_rack: bool = False
) -> dict[str, Any]:
    """Return the hosts with nodes that are down, and the other hosts in batches that are restarted one after the
    other.
    """
    running = [host for host in hosts if host["running"] or (host["differs"] and not host["down"])]
    last = [host for host in running if leader is not None and leader in host["voters"]]
    ordered = [host for host in running if host not in last]
    batches: list[list[Mapping[str, Any]]] = []
    if by_rack:
        led = {host["rack"] for host in last}
        racks = list(dict.fromkeys(host["rack"] for host in ordered))
        for rack in sorted(racks, key=lambda each: each in led):
            members = [host for host in ordered if host["rack"] == rack]
            voting = [host for host in members if host["voters"]]
            # The first voting host is restarted with its rack, the other voting hosts alone.
            batches.append([host for host in members if host not in voting[1:]])
            batches += [[host] for host in voting[1:]]
    else:
        batches = [[host] for host in ordered]
    batches += [[host] for host in last]
    steps = []
    for batch in batches:
        if len(batch) > 1:
            steps.append([node for host in batch for node in host["running"]])
        else:
            steps += [[node] for host in batch for node in host["running"]]
    return {
        "down": [host["host"] for host in hosts if host["down"]],
        "order": [host["host"] for batch in batches for host in batch],
        "batches": [len(batch) for batch in batches],
        "steps": steps,
    }


class FilterModule:
    """The filters of this file, in a class with the name that Ansible requires."""

    def filters(self) -> dict[str, Any]:
        return {"roll_out": roll_out, "touched": touched}
