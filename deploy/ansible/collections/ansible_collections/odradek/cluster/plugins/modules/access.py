#!/usr/bin/python
"""Makes the users and ACLs of a cluster match the inventory, by `odradek user` and `odradek acl`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: access
short_description: Users and rights of an Odradek cluster
description:
  - Adds missing users and rules, and removes users and rules with the state C(absent). All others are left alone.
  - A password cannot be read back. So an existing user keeps its password unless C(passwords) is C(always).
options:
  users:
    description: C(name), C(password) and C(state) (C(present) or C(absent)) of each.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: The user.
        type: str
        required: true
      password:
        description: Its password.
        type: str
      state:
        description: Whether the user must exist.
        type: str
        choices: [present, absent]
        default: present
  rules:
    description:
      - Each rule has C(user), C(operation), one of C(topic), C(group), C(transactional_id) and C(cluster), and optionally
        C(prefixed), C(host), C(deny) and C(state).
    type: list
    elements: dict
    default: []
  passwords:
    description: C(always) sets the passwords of all users again.
    type: str
    choices: [once, always]
    default: once
extends_documentation_fragment: [odradek.cluster.cluster]
author:
  - The Odradek authors (@odradek)
"""
EXAMPLES = r"""
- name: Users and rights
  odradek.cluster.access:
    bootstrap: 192.0.2.1:9092
    users:
      - {name: orders, password: "{{ orders_password }}"}
    rules:
      - {user: orders, operation: write, topic: orders}
"""
RETURN = r"""
done:
  description: What was changed, in words.
  type: list
  elements: str
  returned: always
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.odradek.cluster.plugins.module_utils.cluster import ARGUMENTS, Cluster

_RESOURCES = ("topic", "group", "transactional_id", "cluster")


def rule_problem(rule: dict) -> str | None:
    """Return a sentence about a rule of the inventory that is invalid; None if it is valid."""
    unknown = sorted(set(rule) - {*_RESOURCES, "user", "operation", "prefixed", "host", "deny", "state"})
    if unknown:
        return f"A rule has no key {', '.join(unknown)}."
    if not rule.get("user") or not rule.get("operation"):
        return "A rule needs a user and an operation."
    if sum(bool(rule.get(name)) for name in _RESOURCES) != 1:
        return f"The rule for {rule['user']} needs one of {', '.join(_RESOURCES)}."
    if rule.get("state", "present") not in ("present", "absent"):
        return f"The rule for {rule['user']}: state is present or absent."
    return None


def rule_words(rule: dict) -> list[str]:
    """Return the rule as arguments of `odradek acl add`."""
    words = ["--user", str(rule["user"]), "--operation", str(rule["operation"])]
    for name in _RESOURCES:
        if rule.get(name):
            option = f"--{name.replace('_', '-')}"
            words += [option] if name == "cluster" else [option, str(rule[name])]
    if rule.get("host"):
        words += ["--host", str(rule["host"])]
    return words + ["--prefixed"] * bool(rule.get("prefixed")) + ["--deny"] * bool(rule.get("deny"))


def listed(rule: dict) -> tuple:
    """Return a rule of the inventory as a tuple in the form of `shown`, for comparison."""
    kind = next(name for name in _RESOURCES if rule.get(name))
    user = str(rule["user"])
    return (
        kind,
        "kafka-cluster" if kind == "cluster" else str(rule[kind]),
        "prefixed" if rule.get("prefixed") else "literal",
        user if ":" in user else f"User:{user}",
        str(rule.get("host") or "*"),
        str(rule["operation"]).lower().replace("-", "_"),
        "deny" if rule.get("deny") else "allow",
    )


def shown(acl: dict) -> tuple:
    """Return a rule of `odradek acl list --json` as a tuple, for comparison."""
    names = ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission")
    return tuple(acl[name] for name in names)


def _set_users(cluster: Cluster, users: list[dict], *, anew: bool) -> None:
    there = (
        {each["user"] for each in json.loads(cluster.ask("user", "list", "--json"))["users"]}
        if users
        else set()
    )
    for user in users:
        name, password = user["name"], f"{user['password']}\n"
        if user["state"] == "absent":
            if name in there:
                cluster.change(f"user {name} removed", "user", "remove", name)
        elif name not in there:
            cluster.change(f"user {name} added", "user", "add", name, "--password-file", "-", stdin=password)
        elif anew:
            cluster.change(
                f"password of {name} set", "user", "password", name, "--password-file", "-", stdin=password
            )


def _set_rules(cluster: Cluster, rules: list[dict]) -> None:
    there = (
        {shown(each) for each in json.loads(cluster.ask("acl", "list", "--json"))["acls"]} if rules else set()
    )
    for rule in rules:
        wanted = rule.get("state", "present") == "present"
        if (listed(rule) in there) == wanted:
            continue
        words = rule_words(rule)
        if wanted:
            cluster.change(f"rule added: {' '.join(words)}", "acl", "add", *words)
        else:
            cluster.change(f"rule removed: {' '.join(words)}", "acl", "remove", "--exact", *words)


def main() -> None:
    """Run the module."""
    user_options = {
        "name": {"type": "str", "required": True},
        "password": {"type": "str", "no_log": True},
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    }
    module = AnsibleModule(
        argument_spec={
            "users": {"type": "list", "elements": "dict", "default": [], "options": user_options},
            "rules": {"type": "list", "elements": "dict", "default": []},
            "passwords": {"type": "str", "choices": ["once", "always"], "default": "once", "no_log": False},
            **ARGUMENTS,
        },
        supports_check_mode=True,
    )
    params = module.params
    for user in params["users"]:
        if user["state"] == "present" and not user["password"]:
            module.fail_json(msg=f"User {user['name']} needs a password.")
    for rule in params["rules"]:
        if (problem := rule_problem(rule)) is not None:
            module.fail_json(msg=problem)
    cluster = Cluster(module)
    _set_users(cluster, params["users"], anew=params["passwords"] == "always")
    _set_rules(cluster, params["rules"])
    module.exit_json(changed=bool(cluster.done), done=cluster.done)


if __name__ == "__main__":
    main()
