#!/usr/bin/python
"""Decides whether nodes may be restarted now. For each partition that would become unavailable, it reports the
reason.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: gate
short_description: Wait until nodes of an Odradek cluster may be restarted
description:
  - Looks ahead with C(odradek cluster status) and C(odradek partition list). A restart waits as long as it would make a
    partition unavailable only because other replicas are out of sync or moving.
  - Partitions that become unavailable in any order of restarts are reported. A restart does not wait for them.
options:
  stopping:
    description: Running nodes that this step restarts, all at once.
    type: list
    elements: int
    default: []
  starting:
    description:
      - Nodes of this step that are down. Their start makes nothing unavailable. If a node is in I(stopping), too, it is not
        known whether the node is down.
    type: list
    elements: int
    default: []
  steps:
    description: Restarts of the whole roll-out, each a list of nodes. The module reports their effects, and does not wait.
    type: list
    elements: list
  strict:
    description: Refuse C(steps) if some partition becomes unavailable in any order of restarts.
    type: bool
    default: false
  accept:
    description: Partitions and topics that may become unavailable in this run, or C(quorum), or C(all).
    type: list
    elements: str
    default: []
  timeout_seconds:
    description: Fail after this many seconds. Each minute a line reports what the module waits for.
    type: int
    default: 180
extends_documentation_fragment: [odradek.cluster.cluster]
author:
  - The Odradek authors (@odradek)
"""
EXAMPLES = r"""
- name: Wait until a restart of node 1 makes no partition unavailable
  odradek.cluster.gate:
    bootstrap: 192.0.2.1:9092,192.0.2.2:9092
    stopping: [1]
"""
RETURN = r"""
status:
  description: The last answer of C(odradek cluster status --json), or null.
  type: dict
  returned: always
before:
  description:
    - What the cluster lacks for reasons other than these nodes; null if it does not answer.
    - With empty C(steps), partitions are not asked for.
  type: dict
  returned: always
lines:
  description: Sentences about partitions that become unavailable during the restarts.
  type: list
  elements: str
  returned: always
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.odradek.cluster.plugins.module_utils.asking import ask, ask_together
from ansible_collections.odradek.cluster.plugins.module_utils.looking_ahead import (
    QUORUM,
    accepted_by,
    lacking_before,
    look_ahead,
    summary,
)

_POLL_SECONDS = 1


def _looked(params: dict) -> tuple[dict | None, list, str]:
    """Ask the cluster for its status and partitions. If it does not answer, return (None, [], the reason)."""
    questions = [("cluster", "status"), ("partition", "list")]
    answers = ask_together(params["odradek"], params["bootstrap"], questions)
    (status, trouble), (listed, trouble_of_list) = answers
    if status is None or listed is None:
        return None, [], trouble or trouble_of_list
    return status, listed["partitions"], ""


def steps_lines(status: dict, partitions: list, steps: list) -> list:
    """Return a line for each restart in `steps` about losses that no order of restarts avoids."""
    lines = []
    for nodes in steps:
        texts = summary(look_ahead(status, partitions, nodes)["unspared"])
        if texts:
            plural = "s" if len(nodes) > 1 else ""
            lines.append(
                f"while node{plural} {', '.join(map(str, nodes))} restart{'' if plural else 's'}: {'; '.join(texts)}"
            )
    return lines


def held_up(status: dict | None, partitions: list, trouble: str, params: dict) -> dict:
    """Return the reasons against a restart now, by partition or `quorum`. Leave out the reasons that the operator
    accepts.
    """
    if not params["stopping"]:
        return {}
    if status is None:
        found = {QUORUM: f"the cluster does not answer: {trouble}"}
    else:
        found = look_ahead(status, partitions, params["stopping"])["refused"]
    if set(params["stopping"]) <= set(params["starting"]):
        # Perhaps the quorum does not answer because these nodes are down. Then there is no reason to wait.
        found.pop(QUORUM, None)
    return {name: text for name, text in found.items() if not accepted_by(name, params["accept"])}


def reasons(status: dict | None) -> list:
    """Return sentences about possible reasons for a wait: brokers that are down, directories that are full or hang."""
    if status is None:
        return []
    down = [each["broker"] for each in status["brokers"] if not each["online"]]
    found = [f"brokers are not online: {', '.join(map(str, down))}"] if down else []
    for each in status.get("troubled_directories", []):
        found.append(f"{each['path']} of broker {each['broker']} is in trouble ({each['trouble']})")
    return found


def _judge_steps(module: AnsibleModule) -> None:
    params = module.params
    if params["steps"]:
        status, partitions, trouble = _looked(params)
    else:
        # No node restarts, so no partition becomes unavailable, and the list of partitions is not needed.
        partitions = []
        status, trouble = ask(params["odradek"], params["bootstrap"], "cluster", "status")
    if status is None:
        module.exit_json(
            changed=False,
            status=None,
            before=None,
            lines=[f"not known, since the cluster does not answer: {trouble}"],
        )
    lines = steps_lines(status, partitions, params["steps"])
    if lines and params["strict"]:
        module.fail_json(
            msg=f"Refused by odradek_strict, since restarts cannot spare these: {'; '.join(lines)}. "
            "Give those topics more replicas than min.insync.replicas, or take odradek_strict away.",
            status=status,
            lines=lines,
        )
    before = lacking_before(status, partitions, [])
    module.exit_json(changed=False, status=status, before=before, lines=lines)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "bootstrap": {"type": "str", "required": True},
            "odradek": {"type": "path", "default": "/opt/odradek/current/bin/odradek"},
            "stopping": {"type": "list", "elements": "int", "default": []},
            "starting": {"type": "list", "elements": "int", "default": []},
            "steps": {"type": "list", "elements": "list"},
            "strict": {"type": "bool", "default": False},
            "accept": {"type": "list", "elements": "str", "default": []},
            "timeout_seconds": {"type": "int", "default": 180},
        },
        supports_check_mode=True,
    )
    params = module.params
    if params["steps"] is not None:
        _judge_steps(module)
    started = time.monotonic()
    while True:
        status, partitions, trouble = _looked(params)
        waiting = held_up(status, partitions, trouble, params)
        if not waiting:
            break
        waited = time.monotonic() - started
        if waited > params["timeout_seconds"]:
            texts = summary(waiting) + reasons(status)
            names = ", ".join(map(str, params["stopping"]))
            why = (
                ""
                if QUORUM in waiting
                else "partitions would lose what they have, since replicas elsewhere are missing, out of sync or moving: "
            )
            module.fail_json(
                still_waiting=True,
                left=len(waiting),
                sentence=f"node {names} is not restarted yet: {why}{'; '.join(texts)}",
                remedy="Fix the cause and run the playbook again, or accept the loss for one run with -e odradek_accept=TOPIC "
                "(topics and partitions with commas, quorum, or all).",
                msg="Not yet.",
                status=status,
            )
        time.sleep(_POLL_SECONDS)
    nodes = sorted({*params["stopping"], *params["starting"]})
    module.exit_json(
        changed=False,
        status=status,
        before=None if status is None else lacking_before(status, partitions, nodes),
        lines=[] if status is None else steps_lines(status, partitions, [params["stopping"]]),
    )


if __name__ == "__main__":
    main()
