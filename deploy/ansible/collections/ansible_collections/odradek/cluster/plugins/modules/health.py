#!/usr/bin/python
"""Waits until a cluster is complete, according to `odradek cluster status --json`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: health
short_description: Wait until an Odradek cluster is whole
description:
  - Runs C(odradek) on the host again and again until the cluster has the wanted state. If the time is over before that, the
    module fails and reports what is missing.
  - A fact that the cluster cannot report at the moment counts as missing.
options:
  want:
    description:
      - C(whole) is a quorum with a leader and no silent voter, all brokers online, and all partitions fully replicated.
      - C(present) lets partitions lack replicas, as long as all brokers are there.
      - C(serving) ignores brokers that are down and their replicas, as long as each partition can be written.
      - C(back) requires only the brokers of I(online). If the cluster did not answer before (I(before) is null), a
        I(service) that stays up is enough.
      - C(again) allows everything to be missing that was missing in I(before).
      - C(quorum) requires a leader of the controllers, and ignores partitions.
      - C(report) only reports.
    type: str
    choices: [whole, present, serving, quorum, back, again, report]
    default: whole
  online:
    description: Brokers that must be online.
    type: list
    elements: int
    default: []
  besides:
    description:
      - Brokers that are down for other reasons than this step. The module waits neither for them nor for the replicas that
        partitions lack while they are down.
    type: list
    elements: int
    default: []
  before:
    description: What the cluster lacked before a restart, as M(odradek.cluster.gate) returns it.
    type: dict
  service:
    description: Unit of a node of this host. The module fails early if the unit does not stay up.
    type: str
  awaits_again:
    description:
      - With C(back), go on waiting for the state C(again) once the brokers are back, for the rest of a minute. Success
        means that they are back; C(again) says about the rest.
    type: bool
    default: false
  timeout_seconds:
    description: Fail after this many seconds. Each minute a line reports what the module waits for.
    type: int
    default: 180
extends_documentation_fragment: [odradek.cluster.cluster]
author:
  - The Odradek authors (@odradek)
"""
EXAMPLES = r"""
- name: Go on only with a whole cluster
  odradek.cluster.health:
    bootstrap: 192.0.2.1:9092,192.0.2.2:9092
"""
RETURN = r"""
status:
  description: The last answer of C(odradek cluster status --json).
  type: dict
  returned: always
missing:
  description: Sentences about what keeps the cluster from being whole.
  type: list
  elements: str
  returned: always
again:
  description: Whether nothing is missing that C(before) did not lack, too.
  type: bool
  returned: with C(awaits_again)
fallen:
  description: Whether C(service) does not stay up.
  type: bool
  returned: on failure
waited_seconds:
  description: How long it took.
  type: float
  returned: always
"""

import socket
import subprocess
import time
from collections.abc import Collection

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.odradek.cluster.plugins.module_utils.asking import ask, ask_together, some
from ansible_collections.odradek.cluster.plugins.module_utils.looking_ahead import (
    is_lost,
    lacking_since,
    name_of,
)

_POLL_SECONDS = 0.5
_BACK_POLL_SECONDS = 0.2
_KNOCK_SECONDS = 0.05
_BACK_AGAIN_SECONDS_MAX = 60
_RESTARTS_MAX = 2
_UP_SECONDS = 30
"""The seconds after which a restarted service no longer counts as failing repeatedly."""
_ALL_THERE = ("whole", "present")


def missing_of(status: dict, want: str, online: list[int], besides: Collection[int] = ()) -> list[str]:
    """Return sentences about everything that the wanted state requires and the cluster lacks, the worst first. The list
    is empty if nothing is missing.
    """
    there = {broker["broker"] for broker in status["brokers"] if broker["online"]}
    absent = [broker for broker in online if broker not in there]
    if want == "back":
        return [f"brokers are not online: {some(absent)}"] if absent else []
    found = []
    quorum = status["quorum"]
    if quorum is None or quorum["leader"] is None or quorum["leader"] < 0:
        found.append("the quorum of controllers has no leader")
    elif want in _ALL_THERE and set(quorum["silent_voters"]) - set(besides):
        silent = sorted(set(quorum["silent_voters"]) - set(besides))
        found.append(f"controllers that vote are silent: {some(silent)}")
    if want == "quorum":
        return found
    for key, text in (
        ("offline", "have no leader"),
        ("under_min_isr", "cannot be written (under min.insync.replicas)"),
    ):
        names = status[f"{key}_partitions"]
        if names and not besides:
            found.append(f"partitions {text}: {some(names)}")
    if want in _ALL_THERE:
        down = [broker["broker"] for broker in status["brokers"] if not broker["online"]]
        absent += [broker for broker in down if broker not in besides]
    if absent:
        found.append(f"brokers are not online: {some(sorted(set(absent)))}")
    if want == "whole" and not besides:
        for key, text in (("under_replicated", "are not fully replicated"), ("moving", "are moving")):
            names = status[f"{key}_partitions"]
            if names is None:
                found.append(f"it is not known which partitions {text}")
            elif names:
                found.append(f"partitions {text}: {some(names)}")
    return found


def _fallen(service: str) -> str | None:
    """Return a sentence if the service has ended repeatedly since it was started; otherwise None."""
    shown = subprocess.run(
        ["systemctl", "show", "--property=NRestarts,ActiveState", service],
        capture_output=True,
        text=True,
        check=False,
    )
    facts = dict(line.split("=", 1) for line in shown.stdout.splitlines() if "=" in line)
    if facts.get("ActiveState") != "failed" and int(facts.get("NRestarts") or 0) < _RESTARTS_MAX:
        return None
    last = subprocess.run(
        ["journalctl", "--unit", service, "--lines", "50", "--output", "cat"],
        capture_output=True,
        text=True,
        check=False,
    )
    told = [
        line
        for line in last.stdout.splitlines()
        if line.startswith(("odradek:", "{", "Traceback")) or "Error" in line
    ]
    return f"{service} does not stay up: {told[-1] if told else 'it wrote no log line'}"


def _up_seconds(service: str) -> float:
    """Return the seconds for which the service's process has run; 0 if it does not run."""
    shown = subprocess.run(
        ["systemctl", "show", "--property=ActiveState,ExecMainStartTimestampMonotonic", service],
        capture_output=True,
        text=True,
        check=False,
    )
    facts = dict(line.split("=", 1) for line in shown.stdout.splitlines() if "=" in line)
    if facts.get("ActiveState") != "active":
        return 0.0
    return time.monotonic() - int(facts.get("ExecMainStartTimestampMonotonic") or 0) / 1e6


def _look(params: dict) -> tuple[dict | None, list, int]:
    """Ask the cluster. Return its status, sentences about what it lacks, and the number of things that it lacks."""
    want, before = params["want"], params["before"]
    # Try to connect before running a command. A command would take processor time from a node that is starting.
    if want == "back" and (refusal := _refusal(params["bootstrap"])):
        return None, [f"the cluster does not answer: {refusal}"], 0
    if want == "again" and before is not None:
        questions = [("cluster", "status"), ("partition", "list")]
        answers = ask_together(params["odradek"], params["bootstrap"], questions)
        (status, trouble), (listed, trouble_of_list) = answers
        if status is not None and listed is not None:
            lost = [name_of(each) for each in listed["partitions"] if is_lost(each)]
            status = {**status, "lost_partitions": lost}
            return status, *lacking_since(status, listed["partitions"], before)
        missing = [f"the cluster does not answer: {trouble or trouble_of_list}"]
    else:
        status, trouble = ask(params["odradek"], params["bootstrap"], "cluster", "status")
        missing = [f"the cluster does not answer: {trouble}"]
        if status is not None:
            missing = [] if want == "again" else missing_of(status, want, params["online"], params["besides"])
    keys = ("offline", "under_min_isr", "under_replicated", "moving")
    return status, missing, sum(len((status or {}).get(f"{key}_partitions") or []) for key in keys)


def _refusal(bootstrap: str) -> str:
    """Wait for a moment until the address accepts a connection. Return the error if it does not, otherwise an empty
    text. With several addresses, return an empty text at once.
    """
    host, _, port = bootstrap.rpartition(":")
    until = time.monotonic() + _POLL_SECONDS
    while "," not in bootstrap:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_POLL_SECONDS).close()
            break
        except OSError as error:
            if time.monotonic() > until:
                return error.strerror or str(error)
        time.sleep(_KNOCK_SECONDS)
    return ""


def _awaits_again(params: dict, until: float) -> tuple[dict | None, bool]:
    """Wait until the cluster lacks only what it lacked before the roll-out. Return the last status, and True. The
    second value is False if the time was up, or if the service has failed repeatedly.
    """
    again = {**params, "want": "again"}
    while True:
        status, missing, _ = _look(again)
        if not missing:
            return status, True
        if time.monotonic() > until or (params["service"] and _fallen(params["service"])):
            return status, False
        time.sleep(_POLL_SECONDS)


def _succeed(module: AnsibleModule, status: dict | None, missing: list, started: float) -> None:
    """End the module with this result. If the option `awaits_again` is set, first wait as it demands."""
    more = {}
    if module.params["want"] == "back" and module.params["awaits_again"]:
        status, more["again"] = _awaits_again(module.params, started + _BACK_AGAIN_SECONDS_MAX)
    if lost := (status or {}).get("lost_partitions"):
        module.warn(
            f"No replica that is left has all records of {some(lost)}: an operator has to choose, see "
            "`odradek partition list --offline`. Nothing waits for these."
        )
    waited = round(time.monotonic() - started, 1)
    module.exit_json(changed=False, status=status, missing=missing, waited_seconds=waited, **more)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "bootstrap": {"type": "str", "required": True},
            "odradek": {"type": "path", "default": "/opt/odradek/current/bin/odradek"},
            "want": {
                "type": "str",
                "choices": ["whole", "present", "serving", "quorum", "back", "again", "report"],
                "default": "whole",
            },
            "online": {"type": "list", "elements": "int", "default": []},
            "besides": {"type": "list", "elements": "int", "default": []},
            "before": {"type": "dict"},
            "service": {"type": "str"},
            "awaits_again": {"type": "bool", "default": False},
            "timeout_seconds": {"type": "int", "default": 180},
        },
        supports_check_mode=True,
    )
    params = module.params
    started = time.monotonic()
    while True:
        status, missing, left = _look(params)
        waited = time.monotonic() - started
        if not missing or (params["want"] == "report" and status is not None):
            _succeed(module, status, missing, started)
        if params["service"]:
            if trouble := _fallen(params["service"]):
                module.fail_json(
                    msg=f"{trouble} See `journalctl -u {params['service']}`.",
                    fallen=True,
                    status=status,
                    missing=missing,
                )
            # Without a quorum no node can register. The first node to be started must not count as failed for that
            # reason.
            unheard = params["want"] == "back" and params["before"] is None
            if unheard and _up_seconds(params["service"]) >= _UP_SECONDS:
                module.exit_json(
                    changed=False, status=status, missing=missing, waited_seconds=round(waited, 1)
                )
        if waited > params["timeout_seconds"]:
            wanted = "as before" if params["want"] == "again" else params["want"]
            module.fail_json(
                still_waiting=True,
                left=left,
                sentence=f"the cluster is not {wanted}: {'; '.join(missing)}",
                remedy="See `odradek cluster status`, fix the cause and run the playbook again.",
                msg="Not yet.",
                status=status,
                missing=missing,
            )
        # With `want: back`, pause only briefly, because `_look` itself waits while the address accepts no connection.
        time.sleep(_BACK_POLL_SECONDS if params["want"] == "back" else _POLL_SECONDS)


if __name__ == "__main__":
    main()
