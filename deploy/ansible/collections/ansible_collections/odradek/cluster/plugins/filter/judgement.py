"""Finds all mistakes of an inventory at once, each as a sentence: unknown names, wrong types, duplicates.

`module_utils/variables.py` has a table of the names and their types. A name that begins with `odradek_` is a mistake if
the collection does not use it. Other names belong to the operator. Such a name is a mistake only if it resembles a name
of the collection.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import socket
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.odradek.cluster.plugins.module_utils.variables import Variable, every_variable

DOCUMENTATION = r"""
name: inventory_problems
short_description: Mistakes of an inventory
description:
  - Takes the variables of all hosts of the group, and the plan that C(odradek.cluster.layout) made of them.
  - Names that look like addresses of hosts are resolved on the control machine.
options:
  _input:
    description: Variables by host, in the order of the inventory.
    type: dict
    required: true
  plan:
    description: The plan of C(odradek.cluster.layout).
    type: dict
    required: true
"""
RETURN = r"""
_value:
  description: Sentences that say which mistake was found, and what to do.
  type: list
  elements: str
"""

PREFIX = "odradek_"
_OURS = re.compile(r"\b(?:odradek|node|disks|host)_[a-z0-9_]+\b")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_BOOLEANS = {"y", "yes", "on", "1", "true", "t", "n", "no", "off", "0", "false", "f"}
_TEXTS = (str, int, float)
_SHORT = 10
_SETTINGS = ("odradek_settings", "odradek_host_settings", "node_settings", "odradek_console_client")
_WRITTEN = {
    "node.id": "odradek_node_id",
    "process.roles": "odradek_roles",
    "log.dirs": "odradek_disks",
}
"""Properties that the collection writes itself, each with the variable that determines it."""
_JUDGED_BY_THE_PLAN = ("odradek_security", "odradek_roles", "roles")
"""Variables for which only certain words are allowed. The filter `layout` checks these words, and reports mistakes with
a sentence of its own.
"""


def distance(one: str, other: str) -> int:
    """Count the typing errors between two words: missing, extra, wrong or swapped letters."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, there in enumerate(other, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != there))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == there:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]


def closest(name: str, known: Collection[str], most: int | None = None) -> str | None:
    """Return the known name that was probably meant; None if no known name is similar enough."""
    limit = max(2, len(name) // 4) if most is None else most
    near = [each for each in known if abs(len(each) - len(name)) <= limit]
    found = min(((distance(name, each), each) for each in near), default=(limit + 1, ""))
    return found[1] if found[0] <= limit else None


def _meant(name: str, known: Collection[str]) -> str:
    found = closest(name, known)
    return f": did you mean {found}?" if found else ": there is no such name"


@functools.cache
def names_used() -> frozenset[str]:
    """Return the names of variables that playbooks, roles and plugins of the collection mention."""
    root = Path(__file__).resolve().parents[2]
    files = [path for kind in ("yml", "j2", "py") for path in root.rglob(f"*.{kind}") if path.is_file()]
    return frozenset(name for path in files for name in _OURS.findall(path.read_text(encoding="utf-8")))


def addresses_of(name: str) -> tuple[str, ...]:
    """Return the addresses of a name on this machine; empty for a name that only ssh knows."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(sorted({str(each[4][0]) for each in found}))


def inventory_problems(
    variables: Mapping[str, Mapping[str, Any]],
    plan: Mapping[str, Any],
    resolve: Callable[[str], tuple[str, ...]] = addresses_of,
    used: Collection[str] | None = None,
) -> list[str]:
    """Return all mistakes of the inventory as sentences, each once, with the hosts that it concerns."""
    found: dict[str, list[str]] = defaultdict(list)
    used = names_used() if used is None else used
    for host, values in variables.items():
        for sentence in dict.fromkeys(_problems_of(values, used)):
            found[sentence].append(host)
    everywhere = len(variables)
    problems = [
        sentence if len(hosts) == everywhere and everywhere > 1 else f"{', '.join(hosts)}: {sentence}"
        for sentence, hosts in found.items()
    ]
    pairs, same = _same_hosts(variables, resolve)
    return [*problems, *same, *_shared_ports(plan, pairs)]


def _problems_of(values: Mapping[str, Any], used: Collection[str]) -> Iterator[str]:
    """Yield sentences about the mistakes in one host's variables."""
    known = every_variable()
    allowed = _listed(values.get("odradek_variables_unknown"))
    for name in sorted(map(str, values)):
        if name in known:
            try:
                value = values[name]
            except Exception as error:  # noqa: BLE001 - a template may fail in any way
                yield f"{name} cannot be read: {' '.join(str(error).split())}"
                continue
            yield from value_problems(known[name], value, name)
        elif name not in used and name not in allowed:
            yield from _about_unknown(name, known)
    yield from _about_disks(values.get("odradek_disks"))


def _listed(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list | tuple) else []


def _about_unknown(name: str, known: Mapping[str, Variable]) -> Iterator[str]:
    if name.startswith(PREFIX):
        yield f"{name} is not known{_meant(name, known)}"
        return
    meant = _near(name, frozenset(known))
    if meant is not None:
        yield (
            f"{name} is not known: did you mean {meant}? If it is yours, list it in odradek_variables_unknown."
        )


@functools.cache
def _near(name: str, known: frozenset[str]) -> str | None:
    """Return the variable of the collection that resembles a name without our prefix; None if there is none."""
    if name.startswith("ansible_"):
        return None
    return closest(name, known, 2 if len(name) >= _SHORT else 1)


def value_problems(variable: Variable, value: Any, where: str) -> Iterator[str]:
    """Yield sentences about the mistakes in a variable's value: its type, range and keys."""
    if value is None:
        return
    if where == "odradek_disks" and isinstance(value, str):
        # The filter `layout` checks this word.
        return
    if variable.type == "int":
        yield from _number_problems(variable, value, where)
    elif variable.type == "bool":
        if not isinstance(value, bool) and str(value).lower() not in _BOOLEANS:
            yield f"{where} is {_shown(variable, value)}: write true or false."
    elif variable.type in ("str", "path"):
        yield from _text_problems(variable, value, where)
    elif variable.type == "list":
        if not isinstance(value, list | tuple):
            yield f"{where} is {_shown(variable, value)}: write a list."
            return
        for number, entry in enumerate(value, 1):
            yield from _entry_problems(variable, entry, f"entry {number} of {where}")
    elif variable.type == "dict":
        if not isinstance(value, Mapping):
            yield f"{where} is {_shown(variable, value)}: write keys and values."
            return
        if where in _SETTINGS or variable.name == "settings":
            yield from _settings_problems(value, where)


def _shown(variable: Variable, value: Any) -> str:
    """Return a value as text for a sentence; a possible secret is hidden."""
    if isinstance(value, Mapping):
        return "a dictionary"
    if isinstance(value, list | tuple):
        return "a list"
    return "[hidden]" if variable.name == "password" else repr(str(value))


def _number_problems(variable: Variable, value: Any, where: str) -> Iterator[str]:
    low, high = variable.low, variable.high
    span = f" from {low} to {high}" if high is not None else f" of at least {low}" if low is not None else ""
    is_whole = not isinstance(value, bool) and _WHOLE.fullmatch(str(value)) is not None
    if (
        not is_whole
        or (low is not None and int(str(value)) < low)
        or (high is not None and int(str(value)) > high)
    ):
        yield f"{where} is {_shown(variable, value)}: write a whole number{span}."


def _text_problems(variable: Variable, value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, _TEXTS):
        yield f"{where} is {_shown(variable, value)}: write one text."
    elif variable.choices and variable.name not in _JUDGED_BY_THE_PLAN and str(value) not in variable.choices:
        yield f"{where} is {_shown(variable, value)}: write one of {', '.join(variable.choices)}."
    elif variable.pattern is not None and re.fullmatch(variable.pattern, str(value)) is None:
        yield f"{where} is {_shown(variable, value)}: write {variable.like}."


def _entry_problems(variable: Variable, entry: Any, where: str) -> Iterator[str]:
    if variable.elements != "dict":
        if not isinstance(entry, _TEXTS):
            yield f"{where} is {_shown(variable, entry)}: write one text."
        return
    options = {each.name: each for each in variable.options}
    if not isinstance(entry, Mapping):
        example = ", ".join(f"{each.name}: ..." for each in variable.options if each.required)
        yield f"{where} is {_shown(variable, entry)}: write {{{example}}}."
        return
    for name in sorted(map(str, entry)):
        if name in options:
            yield from value_problems(options[name], entry[name], f"{name} in {where}")
        elif options:
            yield f"{name} in {where} is not known{_meant(name, options)}"
    for name, option in options.items():
        if option.required and entry.get(name) in (None, ""):
            yield f"{where} has no {name}."


def _settings_problems(settings: Mapping[str, Any], where: str) -> Iterator[str]:
    """Yield sentences about settings that are never correct in a properties file, with any release."""
    for key, value in settings.items():
        if isinstance(value, Mapping | list | tuple) or value is None:
            kind = "empty" if value is None else "a dictionary" if isinstance(value, Mapping) else "a list"
            yield f"{key} in {where} is {kind}: write one text, with commas in it for several values."
        if key in _WRITTEN:
            yield f"{key} in {where} would be the same for several nodes: {_WRITTEN[key]} makes it."


def _about_disks(disks: Any) -> Iterator[str]:
    """Yield a sentence for each device that is named several times."""
    if isinstance(disks, list | tuple):
        devices = [str(each["device"]) for each in disks if isinstance(each, Mapping) and each.get("device")]
        for device, count in Counter(devices).items():
            if count > 1:
                yield f"{device} is named {count} times in odradek_disks."


def _same_hosts(
    variables: Mapping[str, Mapping[str, Any]], resolve: Callable[[str], tuple[str, ...]]
) -> tuple[set[frozenset[str]], list[str]]:
    """Return the pairs of hosts that have the same address, and a sentence for each pair."""
    reached: dict[tuple[str, str], list[str]] = defaultdict(list)
    for host, values in variables.items():
        address = str(values.get("ansible_host") or host)
        port = str(values.get("ansible_port") or 22)
        for each in (address,) if _is_address(address) else resolve(address) or (address,):
            reached[(each, port)].append(host)
    pairs: dict[frozenset[str], str] = {}
    for (address, _), hosts in reached.items():
        if len(hosts) > 1:
            names = _and(hosts)
            sentence = f"{names} have one address, {address}: give each host its own in ansible_host."
            pairs.setdefault(frozenset(hosts), sentence)
    return set(pairs), list(pairs.values())


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def listening_ports(node: Mapping[str, Any], stage: str) -> dict[str, int]:
    """Return the ports on which a node listens, by their purpose. `stage` is the stage of securing the cluster."""
    is_broker, is_controller = "broker" in node["roles"], "controller" in node["roles"]
    found = {"metrics": node["metrics_port"]}
    console = node.get("console")
    if console and console["port"]:
        found["console"] = console["port"]
    if stage != "only":
        found |= {"client": node["client_port"]} if is_broker else {}
        found |= {"controller": node["controller_port"]} if is_controller else {}
    if stage != "plaintext":
        if is_broker:
            found |= {"secured client": node["secured_port"], "broker": node["brokers_port"]}
        found |= {"secured controller": node["controller_ssl_port"]} if is_controller else {}
    return found


def _shared_ports(plan: Mapping[str, Any], known: set[frozenset[str]]) -> list[str]:
    """Return a sentence for each address and port that several nodes have. Hosts that are known to be one machine are
    left out.
    """
    at: dict[tuple[str, int], list[tuple[Mapping[str, Any], str]]] = defaultdict(list)
    for node in plan["nodes"]:
        for what, port in listening_ports(node, plan["security"]).items():
            at[(node["address"], port)].append((node, what))
    problems = []
    for (address, port), users in at.items():
        hosts = frozenset(node["host"] for node, _ in users)
        if len(users) < 2 or any(hosts <= each for each in known if len(hosts) > 1):
            continue
        names = _and([f"the {what} port of node {node['id']} ({node['host']})" for node, what in users])
        problems.append(f"{address}:{port} is {names}: give each a port or an address of its own.")
    return problems


class FilterModule:
    """The filters of this file, in a class with the name that Ansible requires."""

    def filters(self) -> dict[str, Any]:
        return {"inventory_problems": inventory_problems, "listening_ports": listening_ports}
