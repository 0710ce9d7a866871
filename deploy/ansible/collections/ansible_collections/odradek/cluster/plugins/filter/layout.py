"""Computes the plan of a cluster from its inventory: every node with its addresses, disks and settings, and the
problems.

PURE: the same inventory gives the same plan, so every playbook and every host compute the same plan.
"""

from __future__ import annotations

import base64
import re
import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ansible_collections.odradek.cluster.plugins.module_utils.faces import (
    CONSOLE_PORT,
    face_problems,
    faces_of,
    settings_of,
)

DOCUMENTATION = r"""
name: layout
short_description: Nodes of an Odradek cluster
description:
  - Takes the variables of all hosts of the group and returns the plan of their cluster.
  - Values of a wrong type are left out; C(odradek.cluster.inventory_problems) names them.
options:
  _input:
    description: Variables by host, in the order of the inventory.
    type: dict
    required: true
"""
RETURN = r"""
_value:
  description: The plan of the cluster.
  type: dict
  contains:
    cluster_id:
      description: Id of the cluster.
      type: str
    nodes:
      description: Each node with its host, addresses, ports, roles, disks, rack, processors, console and metrics page.
      type: list
      elements: dict
    brokers:
      description: Ids of the nodes that are brokers.
      type: list
      elements: int
    voters:
      description: Ids of the nodes that vote.
      type: list
      elements: int
    security:
      description: The stage of securing the cluster.
      type: str
    environment:
      description: The environment of commands that ask the cluster.
      type: dict
    bootstrap:
      description: Addresses of all brokers, HOST:PORT separated by commas.
      type: str
    controller_bootstrap:
      description: Addresses of the voters' controllers.
      type: str
    initial_controllers:
      description: The first voters, as C(odradek storage format) takes them.
      type: str
    problems:
      description: Sentences that say why the plan cannot be carried out.
      type: list
      elements: str
"""

_NAMESPACE = uuid.UUID("6f647261-6465-4b20-8000-6465706c6f79")
_DISK_NAME = re.compile(r"[a-z0-9]{1,8}\Z")
_ROLES = ("broker,controller", "broker", "controller")
_PORTS_PER_NODE = 10
_PORTS = {"client_port": 9092, "controller_port": 9093, "metrics_port": 9094, "console_port": CONSOLE_PORT}
"""The ports that can be set for each node, with their defaults."""
_SECURED_PORTS = {"secured_port": 9095, "brokers_port": 9096, "controller_ssl_port": 9097}
OPERATOR_KEYS = "/etc/odradek/operator.properties"
"""The file of client keys with which a host connects to the cluster, by its own certificate."""
DISCOVER = "discover"
PLAINTEXT = "plaintext"
WITHIN = "within"
ONLY = "only"
STAGES = (PLAINTEXT, "beside", WITHIN, ONLY)
"""The stages of securing a cluster: only plaintext; secured listeners in addition; secured listeners between nodes;
only secured listeners.
"""


def directory_id(cluster_id: str, node_id: int) -> str:
    """Compute the id of a first voter's metadata directory. The id is not random, because all hosts must know it before
    the directory is formatted.
    """
    return base64.urlsafe_b64encode(uuid.uuid5(_NAMESPACE, f"{cluster_id}/{node_id}").bytes).decode()[:22]


def layout(variables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Plan all nodes of the cluster. The plan includes the problems of the inventory, as sentences with advice."""
    problems: list[str] = []
    nodes: list[dict[str, Any]] = []
    for host, values in variables.items():
        nodes += _nodes_of(host, values, problems)
    cluster_ids = sorted({str(values.get("odradek_cluster_id", "")) for values in variables.values()})
    cluster_id = cluster_ids[0] if len(cluster_ids) == 1 else ""
    if not cluster_id.strip() or not cluster_id.isprintable():
        problems.append(
            "odradek_cluster_id must be one and the same text for all hosts: `odradek storage random-uuid` makes one."
        )
    for node_id, count in Counter(node["id"] for node in nodes).items():
        if count > 1:
            hosts = " and ".join(node["host"] for node in nodes if node["id"] == node_id)
            problems.append(
                f"Node id {node_id} is given {count} times ({hosts}): give each node an id of its own."
            )
    voters = [node for node in nodes if node["voter"]]
    if len(voters) % 2 == 0:
        problems.append(
            f"{len(voters)} nodes vote: a majority needs an odd number of them; set odradek_voter on one, three or five."
        )
    problems += _shared_hosts(nodes)
    stages = sorted({str(values.get("odradek_security") or PLAINTEXT) for values in variables.values()})
    stage = stages[0]
    if len(stages) > 1 or stage not in STAGES:
        problems.append(
            f"odradek_security is {', '.join(stages)}: it must be the same on all hosts, one of {', '.join(STAGES)}."
        )
    reached_securely = stage in (WITHIN, ONLY)
    faces: dict[str, list[str]] = {}
    for node in nodes:
        values = variables[node["host"]]
        told = settings_of(values, node["settings"])
        node |= faces_of(values, node, told, stage)
        for sentence in face_problems(values, node, told, stage):
            faces.setdefault(sentence, []).append(node["host"])
        node["asked_port"] = node["brokers_port" if reached_securely else "client_port"]
    problems += [f"{', '.join(dict.fromkeys(hosts))}: {sentence}" for sentence, hosts in faces.items()]
    controller_port = "controller_ssl_port" if reached_securely else "controller_port"
    servers = [f"{node['address']}:{node[controller_port]}" for node in voters]
    # Settings may have secrets, so they are kept apart from the nodes, which are passed to modules as arguments.
    settings = {str(node["id"]): node.pop("settings") for node in nodes}
    return {
        "cluster_id": cluster_id,
        "nodes": nodes,
        "settings": settings,
        "brokers": sorted(node["id"] for node in nodes if "broker" in node["roles"]),
        "voters": sorted(node["id"] for node in voters),
        "security": stage,
        # Environment variables for commands that connect to the cluster.
        "environment": {"ODRADEK_COMMAND_CONFIG": OPERATOR_KEYS} if reached_securely else {},
        "bootstrap": ",".join(
            f"{node['address']}:{node['asked_port']}" for node in nodes if "broker" in node["roles"]
        ),
        "controller_bootstrap": ",".join(servers),
        "initial_controllers": ",".join(
            f"{node['id']}@{server}:{directory_id(cluster_id, node['id'])}"
            for node, server in zip(voters, servers, strict=True)
        ),
        "problems": problems,
    }


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _entries(value: Any) -> list[Mapping[str, Any]]:
    """Return the entries of a list that are dictionaries; the filter `inventory_problems` reports all others."""
    return [each for each in _listed(value) if isinstance(each, Mapping)]


def _is_true(value: Any) -> bool:
    """True if a value means yes. In an inventory such a value may be a word, like `yes` or `on`."""
    return str(value).lower() in ("y", "yes", "on", "1", "true", "t")


def _number(value: Any, otherwise: int) -> int:
    """Return the value as a whole number; return `otherwise` for any other value, which `inventory_problems` reports."""
    try:
        return int(str(value))
    except ValueError:
        return otherwise


def _nodes_of(host: str, values: Mapping[str, Any], problems: list[str]) -> list[dict[str, Any]]:
    told_disks = values.get("odradek_disks") or []
    # Only the host can list its empty disks. Another check refuses a host that cannot be reached.
    unknown = told_disks == DISCOVER
    if isinstance(told_disks, str):
        if not unknown:
            problems.append(
                f"{host}: odradek_disks is {told_disks!r}: list its disks, or write {DISCOVER!r} for all that are empty."
            )
        told_disks = []
    # A disk without a name is a mistake that `inventory_problems` reports. The plan leaves it out.
    told_disks = [disk for disk in _entries(told_disks) if disk.get("name")]
    disks = [str(disk["name"]) for disk in told_disks]
    for name in disks:
        if not _DISK_NAME.match(str(name)):
            problems.append(f"{host}: disk name {name!r} must be one to eight small letters and digits.")
    if len(set(disks)) < len(disks):
        problems.append(f"{host}: several disks have the same name: {', '.join(disks)}.")
    if not disks and not unknown and not values.get("odradek_disks"):
        problems.append(f"{host} has no disks: name them in odradek_disks, or write {DISCOVER!r} there.")
    told = _entries(values.get("odradek_nodes")) or [{"id": values.get("odradek_node_id")}]
    address = str(values.get("odradek_address") or values.get("ansible_host") or host)
    rack = values.get("odradek_rack")
    nodes: list[dict[str, Any]] = []
    for index, node in enumerate(told):
        roles = str(node.get("roles") or values.get("odradek_roles") or _ROLES[0])
        if roles not in _ROLES:
            problems.append(f"{host}: odradek_roles is {roles!r}: it must be one of {'; '.join(_ROLES)}.")
        voter = _is_true(node.get("voter", values.get("odradek_voter", False) if index == 0 else False))
        if voter and "controller" not in roles:
            problems.append(
                f"{host}: a node with the role {roles} cannot vote: give it the role controller, too."
            )
        try:
            node_id = int(str(node.get("id")))
        except ValueError:
            problems.append(f"{host}: a node without an id: set odradek_node_id, or an id in odradek_nodes.")
            continue
        mine = [str(name) for name in _listed(node.get("disks")) or disks]
        for name in mine:
            if name not in disks and not unknown:
                problems.append(
                    f"{host}: node {node_id} names disk {name}, which is missing in odradek_disks."
                )
        shift = index * _PORTS_PER_NODE
        nodes.append(
            {
                "id": node_id,
                "host": host,
                "address": address,
                **{
                    name: _number(node.get(name), _number(values.get(f"odradek_{name}"), port) + shift)
                    for name, port in _PORTS.items()
                },
                **{
                    name: _number(values.get(f"odradek_{name}"), port) + shift
                    for name, port in _SECURED_PORTS.items()
                },
                "roles": roles,
                "voter": voter,
                "disks": mine,
                "rack": str(rack) if rack else host if len(told) > 1 else None,
                "cpus": str(node["cpus"]) if node.get("cpus") is not None else None,
                "settings": dict(node["settings"]) if isinstance(node.get("settings"), Mapping) else {},
            }
        )
    used = [name for node in nodes for name in node["disks"]]
    for name, count in Counter(used).items():
        if count > 1:
            problems.append(
                f"{host}: disk {name} is shared by {count} nodes: give each node disks of its own."
            )
    return nodes


def _shared_hosts(nodes: list[dict[str, Any]]) -> list[str]:
    """Check the racks of shared hosts. Replicas are separated by rack, so there must be at least as many racks as
    replicas.
    """
    brokers = [node for node in nodes if "broker" in node["roles"]]
    hosts = Counter(node["host"] for node in brokers)
    if not hosts or max(hosts.values()) == 1:
        return []
    if any(node["rack"] is None for node in brokers):
        return [
            "Some hosts have several nodes and others name no rack: set odradek_rack on all hosts, "
            "so that replicas of a partition never share a host."
        ]
    racks = {node["rack"] for node in brokers}
    if len(racks) < min(3, len(hosts)):
        return [
            f"{len(racks)} racks are too few for three replicas, and a host has several nodes, so replicas would share a host: set odradek_rack to the host's name."
        ]
    return []


class FilterModule:
    """The filters of this file, in a class with the name that Ansible requires."""

    def filters(self) -> dict[str, Any]:
        return {"layout": layout}
