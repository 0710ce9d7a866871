#!/usr/bin/python
"""Makes the client quotas of a cluster match the inventory, by `odradek quota`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: quotas
short_description: Quotas of an Odradek cluster
description:
  - Sets the quotas that differ. Removes quotas that are to be absent or have no value. All other quotas stay.
  - The controller is asked about each change before the first one is made.
options:
  quotas:
    description:
      - Each entry has C(user), C(client_id) or both, or C(ip). C(<default>) means all entities without a quota of their own.
      - Its limits are C(produce_rate) and C(fetch_rate) in bytes a second, like 10M, C(request_percentage), C(mutation_rate)
        and C(connection_rate) (with C(ip)). A limit without a value is removed; C(state=absent) removes all.
    type: list
    elements: dict
    required: true
extends_documentation_fragment: [odradek.cluster.cluster]
author:
  - The Odradek authors (@odradek)
"""
EXAMPLES = r"""
- name: Quotas
  odradek.cluster.quotas:
    bootstrap: 192.0.2.1:9092
    quotas:
      - {user: orders, produce_rate: 10M}
"""
RETURN = r"""
done:
  description: What was changed, or would be in check mode, in words.
  type: list
  elements: str
  returned: always
"""

import json
from typing import NamedTuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.odradek.cluster.plugins.module_utils.cluster import (
    ARGUMENTS,
    Cluster,
    Refused,
    unknown_keys,
)

_KINDS = ("user", "client_id", "ip")
_LIMITS = {
    "produce_rate": "producer_byte_rate",
    "fetch_rate": "consumer_byte_rate",
    "request_percentage": "request_percentage",
    "mutation_rate": "controller_mutation_rate",
    "connection_rate": "connection_creation_rate",
}
_OF_ADDRESSES = "connection_rate"


class Step(NamedTuple):
    """A planned change: a sentence for the operator, and the words of the command."""

    told: str
    words: list[str]


def entity_of(quota: dict) -> tuple:
    """Return the entity of a quota as pairs (kind, name), in the form of C(odradek quota list --json)."""
    return tuple(
        sorted(
            (kind.replace("_", "-"), str(quota[kind])) for kind in _KINDS if quota.get(kind) not in (None, "")
        )
    )


def _shown(entity: tuple) -> str:
    return " ".join(f"{kind} {name}" for kind, name in reversed(entity)) or "nobody"


def problems_of(quotas: list) -> list[str]:
    """Return a sentence for each mistake in the inventory's quotas."""
    found: list[str] = []
    seen: set = set()
    for index, quota in enumerate(quotas):
        entity = entity_of(quota)
        of = f"The quota of {_shown(entity)}" if entity else f"Entry {index + 1} of odradek_quotas"
        found += unknown_keys(of, quota, (*_KINDS, *_LIMITS, "state"))
        limits = [limit for limit in _LIMITS if limit in quota]
        if not entity:
            found.append(f"{of} needs a user, a client_id, both, or an ip.")
        elif entity in seen:
            found.append(f"{of} is listed twice: write its limits into one entry.")
        if quota.get("ip") and len(entity) > 1:
            found.append(
                f"{of}: ip cannot be combined with user or client_id, because the quota of an address applies to all users."
            )
        if entity and (_OF_ADDRESSES in limits) != bool(quota.get("ip")) and limits:
            found.append(f"{of}: an ip has a connection_rate and nothing else, and only an ip has one.")
        if quota.get("state", "present") not in ("present", "absent"):
            found.append(f"{of}: state is {quota['state']!r}, and must be present or absent.")
        elif quota.get("state", "present") == "present" and not limits:
            found.append(f"{of} has no limit: give one of {', '.join(_LIMITS)}.")
        seen.add(entity)
    return found


def _options(entity: tuple) -> list[str]:
    return [word for kind, name in entity for word in (f"--{kind}", name)]


def _option(limit: str) -> str:
    return f"--{limit.replace('_', '-')}"


def _wanted(cluster: Cluster, quotas: list, problems: list[str]) -> dict[tuple, dict[str, float]]:
    """Have the controller convert the limits of each entry to numbers, without a change (10M becomes 10485760). Add
    its refusals to `problems`.
    """
    found: dict[tuple, dict[str, float]] = {}
    for quota in quotas:
        entity = entity_of(quota)
        limits = {limit: quota[limit] for limit in _LIMITS if quota.get(limit) is not None}
        found[entity] = {}
        if limits and quota.get("state", "present") == "present":
            words = [word for limit, value in limits.items() for word in (_option(limit), str(value))]
            try:
                answer = json.loads(
                    cluster.try_to("quota", "set", *_options(entity), *words, "--dry-run", "--json")
                )
                found[entity] = answer["quotas"][0]["quotas"]
            except Refused as error:
                problems.append(f"The quota of {_shown(entity)}: {error}.")
    return found


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:g}"


def plan(quotas: list, wanted: dict, there: dict) -> list[Step]:
    """Return the steps from the present quotas (`there`) to the wanted quotas. Both are numbers by entity and by
    Kafka's key.
    """
    steps = []
    for quota in quotas:
        entity = entity_of(quota)
        has = there.get(entity, {})
        if quota.get("state", "present") == "absent":
            if has:
                steps.append(
                    Step(
                        f"quotas of {_shown(entity)} removed: {', '.join(sorted(has))}",
                        ["quota", "remove", *_options(entity)],
                    )
                )
            continue
        setting = [
            limit
            for limit, key in _LIMITS.items()
            if quota.get(limit) is not None and has.get(key) != wanted[entity][key]
        ]
        gone = [
            limit for limit, key in _LIMITS.items() if limit in quota and quota[limit] is None and key in has
        ]
        if setting:
            words = [word for limit in setting for word in (_option(limit), str(quota[limit]))]
            shown = ", ".join(
                f"{limit}: {_number(has.get(_LIMITS[limit]))} -> {_number(wanted[entity][_LIMITS[limit]])}"
                for limit in setting
            )
            steps.append(
                Step(f"quotas of {_shown(entity)} set: {shown}", ["quota", "set", *_options(entity), *words])
            )
        if gone:
            steps.append(
                Step(
                    f"quotas of {_shown(entity)} removed: {', '.join(gone)}",
                    ["quota", "remove", *_options(entity), *(_option(limit) for limit in gone)],
                )
            )
    return steps


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"quotas": {"type": "list", "elements": "dict", "required": True}, **ARGUMENTS},
        supports_check_mode=True,
    )
    quotas = module.params["quotas"]
    problems = problems_of(quotas)
    cluster = Cluster(module)
    wanted = _wanted(cluster, quotas, problems) if not problems else {}
    if problems:
        module.fail_json(msg=" ".join([*problems, "No quota was changed."]), problems=problems)
    listed = cluster.ask_json("quota", "list")["quotas"] if quotas else []
    there = {tuple(sorted(each["entity"].items())): each["quotas"] for each in listed}
    for step in plan(quotas, wanted, there):
        cluster.change(step.told, *step.words)
    module.exit_json(changed=bool(cluster.done), done=cluster.done)


if __name__ == "__main__":
    main()
