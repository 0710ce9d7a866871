#!/usr/bin/python
"""Makes the topics of a cluster match the inventory, by `odradek topic` and `odradek partition`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: topics
short_description: Topics of an Odradek cluster
description:
  - Creates missing topics, adds partitions and replicas, and sets the named configurations. Everything else stays.
  - The whole plan is checked before the first change, and the controller is asked whether it would accept each step.
  - A change that may remove records or replicas is refused, unless C(loss) names the topic.
options:
  topics:
    description:
      - C(name), C(partitions), C(replication_factor), C(configs) and C(state) (C(present) or C(absent)) of each.
      - A configuration without a value goes back to its default.
    type: list
    elements: dict
    required: true
  loss:
    description: Topics that may lose records or replicas in this run.
    type: list
    elements: str
    default: []
  copy_seconds:
    description: How long replicas may take to be copied to other brokers.
    type: int
    default: 86400
  throttle:
    description: Most bytes per second that a copy may take from a broker.
    type: str
    default: ""
extends_documentation_fragment: [odradek.cluster.cluster]
author:
  - The Odradek authors (@odradek)
"""
EXAMPLES = r"""
- name: Topics
  odradek.cluster.topics:
    bootstrap: 192.0.2.1:9092
    topics:
      - {name: orders, partitions: 12, replication_factor: 3, configs: {retention.ms: 604800000}}
"""
RETURN = r"""
done:
  description: What was changed, or would be in check mode, in words.
  type: list
  elements: str
  returned: always
"""

import re
from collections import Counter
from typing import Any, NamedTuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.odradek.cluster.plugins.module_utils.cluster import (
    ARGUMENTS,
    Cluster,
    Refused,
    unknown_keys,
)

_KEYS = ("name", "partitions", "replication_factor", "configs", "state")
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_COUNTS = {"partitions": (1 << 31) - 1, "replication_factor": (1 << 15) - 1}
_POLICY = "cleanup.policy"
_IN_SYNC = "min.insync.replicas"
_BOUNDS = ("retention.ms", "retention.bytes")
_FOREVER = -1
_PREFIX_OF_OURS = "__"


class Step(NamedTuple):
    """A planned change: a sentence for the operator, and the words of the command. C(check) is a command that
    only asks whether the change is possible.
    """

    told: str
    words: list[str]
    check: list[str]


class Loss(NamedTuple):
    """The reason why the change of a topic may lose records."""

    topic: str
    why: str


def problems_of(topics: list) -> list[str]:
    """Return a sentence for each mistake in the inventory's topics."""
    found: list[str] = []
    for index, topic in enumerate(topics):
        name = str(topic.get("name") or "")
        of = f"Topic {name}" if name else f"Entry {index + 1} of odradek_topics"
        found += unknown_keys(of, topic, _KEYS)
        if not _NAME.fullmatch(name) or name in (".", ".."):
            found.append(f"{of} needs a name of at most 249 letters, digits, dots, hyphens and underscores.")
        elif name.startswith(_PREFIX_OF_OURS):
            found.append(f"{of} is an internal topic, which the cluster creates itself: remove the entry.")
        for key, most in _COUNTS.items():
            count = topic.get(key)
            if count is not None and (not _is_whole(count) or not 1 <= int(count) <= most):
                found.append(f"{of}: {key} is {count!r}, and must be a whole number from 1 to {most}.")
        if topic.get("state", "present") not in ("present", "absent"):
            found.append(f"{of}: state is {topic['state']!r}, and must be present or absent.")
        found += _problems_of_configs(of, topic.get("configs"))
        in_sync = (
            (topic.get("configs") or {}).get(_IN_SYNC) if isinstance(topic.get("configs"), dict) else None
        )
        replicas = topic.get("replication_factor")
        if _is_whole(in_sync) and _is_whole(replicas) and int(in_sync) > int(replicas):
            found.append(
                f"{of}: {_IN_SYNC} is {in_sync}, but the topic has only {replicas} replicas: acks=all would always be refused."
            )
    return found + _problems_of_names([str(topic.get("name")) for topic in topics if topic.get("name")])


def _problems_of_configs(of: str, configs: Any) -> list[str]:
    if configs is None:
        return []
    if not isinstance(configs, dict):
        return [f"{of}: configs must be a dictionary, like {{retention.ms: 604800000}}."]
    return [
        f"{of}: {key} is {value!r}, and must be a number or a text."
        for key, value in configs.items()
        if not isinstance(value, (str, int, float, bool, type(None)))
    ]


def _problems_of_names(names: list[str]) -> list[str]:
    found = [f"Topic {name} is there {count} times." for name, count in Counter(names).items() if count > 1]
    for alike in {name.replace(".", "_") for name in names}:
        same = sorted({name for name in names if name.replace(".", "_") == alike})
        if len(same) > 1:
            found.append(
                f"Topics {' and '.join(same)} differ by dots and underscores alone, which metrics cannot tell apart: rename one."
            )
    return found


def _is_whole(value: Any) -> bool:
    return not isinstance(value, bool) and re.fullmatch(r"[0-9]{1,10}", str(value)) is not None


def text_of(value: Any) -> str:
    """Return a configuration's value as text in Kafka's form."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def plan(topics: list, there: dict, effective: dict) -> tuple[list[Step], list[Loss], list[str]]:
    """Return the steps to the wanted topics, the losses that these may cause, and sentences about impossible changes.

    C(there) has the objects of C(odradek topic describe --json) by topic. C(effective) has the effective
    configuration by topic and key.
    """
    steps: list[Step] = []
    losses: list[Loss] = []
    refused: list[str] = []
    for topic in topics:
        name = topic["name"]
        known = there.get(name)
        if topic.get("state", "present") == "absent":
            if known is not None:
                count = len(known["partitions"])
                losses.append(
                    Loss(name, f"it has {count} partitions, and would be gone with all its records")
                )
                steps.append(Step(f"topic {name} deleted", ["topic", "delete", name], []))
        elif known is None:
            steps.append(_creation(topic))
        else:
            _plan_configs(topic, known, effective.get(name, {}), steps, losses)
            _plan_counts(topic, known, steps, losses, refused)
    return steps, losses, refused


def _creation(topic: dict) -> Step:
    words = ["topic", "create", topic["name"]]
    shown = []
    for key, noun in (("partitions", "partition"), ("replication_factor", "replica")):
        count = topic.get(key)
        if count is not None:
            words += [f"--{key.replace('_', '-')}", str(count)]
            shown.append(f"{count} {noun}" + "s" * (int(count) != 1))
    for key, value in (topic.get("configs") or {}).items():
        if value is not None:
            words += ["--config", f"{key}={text_of(value)}"]
            shown.append(f"{key}={text_of(value)}")
    told = f"topic {topic['name']} created" + (f": {', '.join(shown)}" if shown else "")
    return Step(told, words, [*words, "--validate-only"])


def _plan_configs(topic: dict, known: dict, effective: dict, steps: list[Step], losses: list[Loss]) -> None:
    name, own = topic["name"], known["configs"]
    words: list[str] = []
    shown: list[str] = []
    for key, value in (topic.get("configs") or {}).items():
        after = None if value is None else text_of(value)
        if own.get(key) == after:
            continue
        words += ["--unset", key] if after is None else ["--config", f"{key}={after}"]
        shown.append(f"{key}: {own.get(key, 'default')} -> {'default' if after is None else after}")
        why = loss_of(key, effective.get(key), after)
        losses += [Loss(name, why)] if why else []
    if words:
        alter = ["topic", "alter", name, *words]
        steps.append(Step(f"topic {name} changed: {', '.join(shown)}", alter, [*alter, "--validate-only"]))


def loss_of(key: str, before: str | None, after: str | None) -> str | None:
    """Return why a change of a configuration may remove records; None if it cannot. C(after) is None for the default."""
    if key in _BOUNDS:
        if after is None:
            return f"{key} goes from {before} to its default, which may be less"
        bounds = []
        for text in (before, after):
            try:
                bounds.append(int(text or _FOREVER))
            except ValueError:
                # The controller refuses this value, with its own message.
                return None
        old, new = bounds
        if new != _FOREVER and (old == _FOREVER or new < old):
            return f"{key} goes from {before} to {after}, and older records go"
    if key == _POLICY:
        if after is None:
            return f"{key} goes from {before} to its default, which may remove records"
        added = {each.strip() for each in after.split(",")} - {
            each.strip() for each in (before or "").split(",")
        }
        if added & {"delete", "compact"}:
            return f"{key} goes from {before} to {after}, which removes records that stay now"
    return None


def _plan_counts(topic: dict, known: dict, steps: list[Step], losses: list[Loss], refused: list[str]) -> None:
    name, partitions, replicas = topic["name"], topic.get("partitions"), topic.get("replication_factor")
    if partitions is not None and int(partitions) != len(known["partitions"]):
        before = len(known["partitions"])
        if int(partitions) < before:
            refused.append(
                f"Topic {name} has {before} partitions, and the inventory says {partitions}. Partitions are never taken away: "
                f"write {before}, or make another topic."
            )
        else:
            words = ["topic", "alter", name, "--partitions", str(partitions)]
            steps.append(
                Step(
                    f"topic {name} changed: partitions: {before} -> {partitions}",
                    words,
                    [*words, "--validate-only"],
                )
            )
    if replicas is None:
        return
    counts = {len(each["replicas"]) for each in known["partitions"]}
    if counts == {int(replicas)}:
        return
    if max(counts) > int(replicas):
        losses.append(
            Loss(name, f"its partitions have up to {max(counts)} replicas, and would have {replicas}")
        )
    words = ["partition", "move", name, "--replicas", str(replicas)]
    told = f"topic {name} changed: replicas: {', '.join(map(str, sorted(counts)))} -> {replicas}"
    # Without --execute the command only plans, and checks whether there are enough brokers and room.
    steps.append(Step(told, [*words, "--execute"], words))


def refused_losses(losses: list[Loss], accepted: list[str]) -> list[str]:
    """Return a sentence for each topic that may lose records, unless the operator has accepted the loss."""
    found = []
    for topic in dict.fromkeys(loss.topic for loss in losses if loss.topic not in accepted):
        why = "; ".join(loss.why for loss in losses if loss.topic == topic)
        found.append(f"Topic {topic}: {why}. To accept this for one run, add -e odradek_topics_loss={topic}.")
    return found


def _looked_up(cluster: Cluster, topics: list) -> tuple[dict, dict]:
    """Return the existing topics with their descriptions, and the effective values of the keys that decide how long
    records stay.
    """
    listed = {each["topic"] for each in cluster.ask_json("topic", "list")["topics"]}
    names = [topic["name"] for topic in topics if topic["name"] in listed]
    described = cluster.ask_json("topic", "describe", *names)["topics"] if names else []
    there = {each["topic"]: each for each in described}
    effective = {}
    for topic in topics:
        if topic["name"] in there and {_POLICY, *_BOUNDS} & set(topic.get("configs") or {}):
            found = cluster.ask_json("config", "get", "topic", topic["name"])["configs"]
            effective[topic["name"]] = {each["key"]: each["value"] for each in found}
    return there, effective


def _refusals(cluster: Cluster, steps: list[Step]) -> list[str]:
    """Ask the controller about each step. Return a sentence for each step that the controller would refuse."""
    found = []
    for step in steps:
        if step.check:
            try:
                cluster.try_to(*step.check)
            except Refused as error:
                found.append(f"{step.told[:1].upper()}{step.told[1:]}: refused, {error}.")
    return found


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "topics": {"type": "list", "elements": "dict", "required": True},
            "loss": {"type": "list", "elements": "str", "default": []},
            "copy_seconds": {"type": "int", "default": 86400},
            "throttle": {"type": "str", "default": ""},
            **ARGUMENTS,
        },
        supports_check_mode=True,
    )
    topics = module.params["topics"]
    problems = problems_of(topics)
    if problems:
        module.fail_json(msg=" ".join([*problems, "Nothing was changed."]), problems=problems)
    cluster = Cluster(module)
    steps, losses, problems = plan(topics, *_looked_up(cluster, topics))
    problems += refused_losses(losses, module.params["loss"])
    problems += _refusals(cluster, steps)
    if problems:
        module.fail_json(msg=" ".join([*problems, "Nothing was changed."]), problems=problems)
    for step in steps:
        patience = []
        if step.words[0] == "partition":
            patience = ["--timeout", str(module.params["copy_seconds"])]
            patience += ["--throttle", module.params["throttle"]] if module.params["throttle"] else []
        cluster.change(step.told, *step.words, *patience)
    module.exit_json(changed=bool(cluster.done), done=cluster.done)


if __name__ == "__main__":
    main()
