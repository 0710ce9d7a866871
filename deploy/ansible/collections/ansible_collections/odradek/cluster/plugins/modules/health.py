#!/usr/bin/python
"""Wait until a cluster is whole, by what `odradek cluster status --json` says."""

from __future__ import annotations

DOCUMENTATION = r"""
module: health
short_description: Wait until an Odradek cluster is whole
description:
  - Asks C(odradek) itself on the host, again and again, until the cluster is as wanted; fails with what is missing.
  - What the cluster cannot tell at the moment counts as missing.
options:
  bootstrap:
    description: Addresses of brokers, HOST:PORT with commas.
    type: str
    required: true
  odradek:
    description: Path of the command.
    type: path
    default: /opt/odradek/current/bin/odradek
  want:
    description:
      - C(whole) is a quorum with a leader and no silent voter, all brokers online, and all partitions fully replicated.
      - C(present) lets partitions lack replicas, as long as all brokers are there.
      - C(serving) leaves out brokers that are down and what they hold, as long as each partition can be written.
      - C(report) only tells.
    type: str
    choices: [whole, present, serving, report]
    default: whole
  online:
    description: Brokers that must be there.
    type: list
    elements: int
    default: []
  service:
    description: Unit of a node of this host; fail early if it does not stay up.
    type: str
  timeout_seconds:
    description: Fail after so long.
    type: int
    default: 180
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
  description: What keeps the cluster from being whole, in words.
  type: list
  elements: str
  returned: always
waited_seconds:
  description: How long it took.
  type: float
  returned: always
"""

import json
import subprocess
import time

from ansible.module_utils.basic import AnsibleModule

_POLL_SECONDS = 0.5
_ASK_SECONDS = 10
_RESTARTS_MAX = 2
_ALL_THERE = ("whole", "present")


def _asked(odradek: str, bootstrap: str) -> tuple[dict | None, str]:
    command = [
        odradek,
        "cluster",
        "status",
        "--json",
        "--timeout",
        str(_ASK_SECONDS),
        "--bootstrap-server",
        bootstrap,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ASK_SECONDS * 3)
        return json.loads(done.stdout), ""
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    except ValueError:
        lines = done.stderr.strip().splitlines() or ["no answer"]
        return None, lines[-1]


def missing_of(status: dict, want: str, online: list[int]) -> list[str]:
    """Return the conditions that the cluster misses, worst first; empty if the cluster is as wanted."""
    found = []
    quorum = status["quorum"]
    if quorum is None or quorum["leader"] is None or quorum["leader"] < 0:
        found.append("the quorum of controllers has no leader")
    elif want in _ALL_THERE and quorum["silent_voters"]:
        found.append(f"controllers that vote are silent: {_some(quorum['silent_voters'])}")
    for key, text in (
        ("offline", "have no leader"),
        ("under_min_isr", "cannot be written (under min.insync.replicas)"),
    ):
        names = status[f"{key}_partitions"]
        if names:
            found.append(f"partitions {text}: {_some(names)}")
    there = {broker["broker"] for broker in status["brokers"] if broker["online"]}
    absent = [broker for broker in online if broker not in there]
    if want in _ALL_THERE:
        absent += [broker["broker"] for broker in status["brokers"] if not broker["online"]]
    if absent:
        found.append(f"brokers are not online: {_some(sorted(set(absent)))}")
    if want == "whole":
        for key, text in (("under_replicated", "are not fully replicated"), ("moving", "are moving")):
            names = status[f"{key}_partitions"]
            if names is None:
                found.append(f"it is not known which partitions {text}")
            elif names:
                found.append(f"partitions {text}: {_some(names)}")
    return found


def _fallen(service: str) -> str | None:
    """Return a sentence if the service has ended again and again since it was started."""
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
    return f"{service} does not stay up: {told[-1] if told else 'it says nothing'}"


def _some(names: list, most: int = 5) -> str:
    text = ", ".join(map(str, names[:most]))
    return f"{text} and {len(names) - most} more" if len(names) > most else text


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "bootstrap": {"type": "str", "required": True},
            "odradek": {"type": "path", "default": "/opt/odradek/current/bin/odradek"},
            "want": {"type": "str", "choices": ["whole", "present", "serving", "report"], "default": "whole"},
            "online": {"type": "list", "elements": "int", "default": []},
            "service": {"type": "str"},
            "timeout_seconds": {"type": "int", "default": 180},
        },
        supports_check_mode=True,
    )
    params = module.params
    started = time.monotonic()
    while True:
        status, trouble = _asked(params["odradek"], params["bootstrap"])
        if status is None:
            missing = [f"the cluster does not answer: {trouble}"]
        else:
            missing = missing_of(status, params["want"], params["online"])
        waited = time.monotonic() - started
        if not missing or (params["want"] == "report" and status is not None):
            module.exit_json(changed=False, status=status, missing=missing, waited_seconds=round(waited, 1))
        if params["service"] and (trouble := _fallen(params["service"])):
            module.fail_json(
                msg=f"{trouble} See `journalctl -u {params['service']}`.", status=status, missing=missing
            )
        if waited > params["timeout_seconds"]:
            module.fail_json(
                msg=f"Stopped, since the cluster is not {params['want']} after {waited:.0f} s: {'; '.join(missing)}. "
                "See `odradek cluster status`, put that right and run the playbook again.",
                status=status,
                missing=missing,
            )
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    main()
