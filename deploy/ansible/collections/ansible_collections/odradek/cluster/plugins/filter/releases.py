"""Checks that a release has the same contents in its archive and on each host where it is installed.

PURE: the facts about the hosts and the archive are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

DOCUMENTATION = r"""
name: releases
short_description: Compare the contents of a release between hosts and archive
description:
  - C(release_needing) lists the hosts that lack a release, C(release_problem) says why the release cannot be rolled out.
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


def release_needing(name: str, states: Mapping[str, Any], hosts: Sequence[str]) -> list[str]:
    """Return the hosts that lack the release. `states` has the results of the module `node_facts` by host."""
    return [host for host in hosts if name not in (states.get(host) or {}).get("identities", {})]


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
        return {"release_needing": release_needing, "release_problem": release_problem}
