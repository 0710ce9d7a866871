"""Checks that a release has the same contents in its archive and on each host where it is installed.

PURE: the facts about the hosts and the archive are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

DOCUMENTATION = r"""
name: releases
short_description: Compare the contents of a release between hosts and archive
description:
  - C(release_needing) lists the hosts that lack a release, or an extra of it.
  - C(extras_needed) lists the extras of nodes, and C(extras_lacking) those that a host's release does not have.
  - C(release_problem) says why the release cannot be rolled out.
options:
  _input:
    description: Name of the release.
    type: str
    required: true
"""
RETURN = r"""
_value:
  description: Names of hosts; or a text, which is empty if the release is the same everywhere.
  type: raw
"""

_SHOWN = 12


def release_needing(
    name: str, states: Mapping[str, Any], hosts: Sequence[str], nodes: Sequence[Mapping[str, Any]] = ()
) -> list[str]:
    """Return the hosts that lack the release, or an extra of it that their nodes need. `states` has the results of the
    module `node_facts` by host. `nodes` are those of the plan that may need extras.
    """
    found = []
    for host in hosts:
        state = states.get(host) or {}
        mine = [each for each in nodes if each["host"] == host]
        if name not in state.get("identities", {}) or extras_lacking(name, state, mine):
            found.append(host)
    return found


def extras_lacking(name: str, state: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the extras that the nodes of a host need, and that its installed release does not have."""
    there = (state.get("extras") or {}).get(name) or ()
    return [each for each in extras_needed(nodes) if each not in there]


def extras_needed(nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the extras of the package that these nodes of the plan need."""
    return ["console"] if any(each.get("console") for each in nodes) else []


def hosts_lacking_extras(variables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the hosts of a founded cluster whose release is installed without an extra that their nodes need.
    `variables` are those of all hosts.
    """
    found = []
    for host, values in variables.items():
        state, name = values.get("odradek_host_state") or {}, str(values.get("odradek_release") or "")
        is_installed = name in (state.get("identities") or {})
        if is_installed and not values.get("odradek_going_back"):
            found += release_needing(name, {host: state}, [host], values.get("odradek_mine") or ())
    return found


def release_problem(name: str, states: Mapping[str, Any], archive: Mapping[str, Any] | None = None) -> str:
    """Return a sentence if the release of this name has different contents on two hosts, or on a host and in the
    archive. Otherwise return "".
    """
    places: dict[str, list[str]] = {}
    commits: dict[str, str] = {}
    for host, state in states.items():
        identity = (state or {}).get("identities", {}).get(name)
        if identity is not None:
            places.setdefault(identity["digest"], []).append(host)
            commits[identity["digest"]] = identity["commit"]
    if archive:
        places.setdefault(archive["digest"], []).append("the archive")
        commits[archive["digest"]] = archive["commit"]
    if len(places) < 2:
        return ""
    listed = "; ".join(
        f"{', '.join(where)}: digest {digest[:_SHOWN]} (commit {commits[digest][:_SHOWN]})"
        for digest, where in places.items()
    )
    return (
        f"Release {name} is not the same everywhere: {listed}. A release name must be used only once. Build the present sources under another version (make release ARGS='--version VERSION') and upgrade to that, "
        "or restore the archive with the contents that the hosts have."
    )


class FilterModule:
    """The filters of this file, in a class with the name that Ansible requires."""

    def filters(self) -> dict[str, Any]:
        return {
            "extras_lacking": extras_lacking,
            "extras_needed": extras_needed,
            "hosts_lacking_extras": hosts_lacking_extras,
            "release_needing": release_needing,
            "release_problem": release_problem,
        }
