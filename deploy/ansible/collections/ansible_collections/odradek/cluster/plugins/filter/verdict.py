"""Judges an inventory, its hosts and its cluster, after all facts were collected and before anything is changed.

PURE: the facts are arguments. A problem stops the run; a note is only printed. Many problems of a new host are only
notes for a member of the cluster, because the playbook may be needed to repair it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.odradek.cluster.plugins.filter.judgement import inventory_problems, listening_ports
from ansible_collections.odradek.cluster.plugins.module_utils.faces import is_loopback

DOCUMENTATION = r"""
name: verdict
short_description: All mistakes of an inventory, its hosts and its cluster
description:
  - Takes the facts that the playbook C(judge) has collected, and returns C(problems) and C(notes), both in sentences.
options:
  _input:
    description: Variables by host, in the order of the inventory.
    type: dict
    required: true
  plan:
    description: The plan of C(odradek.cluster.layout).
    type: dict
    required: true
  run:
    description: C(converges), C(prepares), C(host), C(check), C(fails_on_difference) of the playbook that is run.
    type: dict
    required: true
"""
RETURN = r"""
_value:
  description: C(problems) stop the run, C(notes) are only printed.
  type: dict
"""

_DISKS_ROOT = "/srv/odradek"


class _Host(NamedTuple):
    """A host with the facts that were collected about it."""

    name: str
    values: Mapping[str, Any]
    nodes: list[Mapping[str, Any]]
    is_concerned: bool
    """True if this run prepares this host."""

    @property
    def state(self) -> Mapping[str, Any]:
        return self.values.get("odradek_host_state") or {}

    @property
    def found(self) -> Mapping[str, Any]:
        """The facts that `node_facts` returns as `checks`; empty if they were not collected."""
        found = self.values.get("host_judged") or {}
        return found if "system" in found else {}

    @property
    def is_unreachable(self) -> bool:
        return bool(self.state.get("unreachable"))

    @property
    def is_member(self) -> bool:
        return bool(self.state.get("founded"))


def looks_of(plan: Mapping[str, Any], host: str) -> dict[str, list[dict[str, Any]]]:
    """Return what `node_facts` must check on a host: its nodes with all ports, and other nodes with the ports used
    between nodes.
    """
    names = (
        ("broker", "secured controller")
        if plan["security"] in ("within", "only")
        else ("client", "controller")
    )
    looks: dict[str, list[dict[str, Any]]] = {"nodes": [], "peers": []}
    for node in plan["nodes"]:
        ports = listening_ports(node, plan["security"])
        is_own = node["host"] == host
        if node.get("console") and is_loopback(node["console"]["host"]):
            # The host is only asked for ports at the addresses that other machines reach.
            ports.pop("console", None)
        wanted = list(ports.values()) if is_own else [ports[name] for name in names if name in ports]
        looks["nodes" if is_own else "peers"].append(
            {"id": node["id"], "address": node["address"], "ports": wanted}
        )
    return looks


def verdict(
    variables: Mapping[str, Mapping[str, Any]], plan: Mapping[str, Any], run: Mapping[str, Any]
) -> dict[str, list[str]]:
    """Return all problems and notes as sentences, each once."""
    only = run.get("host") or None
    hosts = [
        _Host(
            name,
            values,
            [node for node in plan["nodes"] if node["host"] == name],
            bool(run.get("prepares")) and only in (None, name),
        )
        for name, values in variables.items()
    ]
    live = next(
        (
            host.values["odradek_live"]
            for host in hosts
            if "status" in (host.values.get("odradek_live") or {})
        ),
        {},
    )
    problems = [*inventory_problems(variables, plan), *plan["problems"], *_about_run(run)]
    notes: list[str] = []
    refused: dict[str, list[str]] = defaultdict(list)
    said: dict[str, list[str]] = defaultdict(list)
    for host in hosts:
        for is_refused, sentence in _about_host(host, hosts, plan, live, bool(run.get("converges"))):
            (refused if is_refused else said)[sentence].append(host.name)
    problems += [*_one_machine(hosts), *_about_cluster(plan, live), *_with_hosts(refused)]
    notes += [*_about_members(plan, live), *_with_hosts(said)]
    if problems:
        # Also report the hosts that cannot be reached, so that an operator can fix all problems at once.
        problems += [f"{host.name} cannot be reached over SSH." for host in hosts if host.is_unreachable]
    return {"problems": list(dict.fromkeys(problems)), "notes": list(dict.fromkeys(notes))}


def _with_hosts(sentences: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{', '.join(hosts)}: {sentence}" for sentence, hosts in sentences.items()]


def _about_run(run: Mapping[str, Any]) -> Iterator[str]:
    if run.get("fails_on_difference") and not run.get("check"):
        yield "odradek_fail_on_difference is for runs with --check: add it, or leave the variable out."


def _about_host(
    host: _Host, hosts: Sequence[_Host], plan: Mapping[str, Any], live: Mapping[str, Any], converges: bool
) -> Iterator[tuple[bool, str]]:
    """Yield (stops the run, sentence) for each fact about a host that an operator must know."""
    if "odradek_discovered" in host.values and not host.is_unreachable:
        found = host.values["odradek_discovered"]
        if not any(key in found for key in ("skipped", "unreachable", "discovered")):
            yield True, str(found.get("msg", "the disks of this host cannot be examined."))
    refuses_new = converges and host.is_concerned and not host.is_member
    for sentence in (*_about_system(host), *_about_ports(host, hosts)):
        yield refuses_new, sentence
    for sentence in _about_clock(host):
        yield converges and host.is_concerned, sentence
    there = host.found.get("cluster_id")
    if there and there != plan["cluster_id"]:
        yield True, f"it belongs to the cluster {there}, and odradek_cluster_id is {plan['cluster_id']}."
    for sentence in _about_vanished(host, live):
        yield converges, sentence
    for name in ("disks_judged", "node_release_judged", "node_room_judged"):
        message = (host.values.get(name) or {}).get("msg")
        if message and host.is_concerned:
            yield True, str(message)
    for name in ("node_console_judged", "node_extra_judged"):
        for message in host.values.get(name) or ():
            yield converges, str(message)
    settings = (host.values.get("node_settings_judged") or {}).get("problems") or {}
    for sentence in (each for found in settings.values() for each in found):
        yield converges, f"settings: {sentence}"


def _about_system(host: _Host) -> Iterator[str]:
    found = host.found
    if not found or host.is_member:
        return
    systems = [str(each) for each in found["systems"]]
    if found["system"] not in systems:
        yield f"it has the system {found['system']}, and this collection is tested on {', '.join(systems)} (host_systems)."
    needed = int(found["memory_bytes_min"]) * max(1, len(host.nodes))
    if found["memory_bytes"] < needed:
        yield (
            f"it has {found['memory_bytes'] // 1_000_000} MB of memory, and {needed // 1_000_000} are needed "
            "(host_memory_bytes_min for each node)."
        )


def _about_ports(host: _Host, hosts: Sequence[_Host]) -> Iterator[str]:
    """Yield sentences about a host's ports, names, and connections to other hosts."""
    found = host.found
    if not found:
        return
    for each in found["taken"]:
        yield f"port {each['port']} is taken by {each['by']}."
    for address, resolved in found["resolved"].items():
        if not resolved:
            yield f"the name {address} has no address there: write it into DNS or /etc/hosts, or set odradek_address."
        elif len(hosts) > 1 and any(each.startswith("127.") or each == "::1" for each in resolved):
            yield (
                f"the name {address} is {resolved[0]} there, where no other host can reach it: take it out of /etc/hosts, "
                "or set odradek_address."
            )
    for address in found["absent"]:
        yield f"no interface there has the address {address}, at which its nodes are to listen (odradek_address)."
    listening = {
        node["id"]: set(each.found.get("listening", ()))
        for each in hosts
        if each.found
        for node in each.nodes
    }
    for each in found["unreached"]:
        # A refused connection is no problem of the network if nothing listens on the port yet.
        if each["port"] in listening.get(each["id"], ()):
            yield (
                f"{each['address']}:{each['port']} (node {each['id']}) cannot be reached from there ({each['why']}): "
                "look at firewalls and routes."
            )


def _about_clock(host: _Host) -> Iterator[str]:
    found = host.found
    if not found:
        return
    skew = float(found["clock_skew_seconds_max"])
    clock = float(found["clock_seconds"])
    if not float(found["asked_at"]) - skew < clock < float(found["answered_at"]) + skew:
        yield f"its clock is wrong by more than {skew:g} s: set it and let an NTP client keep it."
    if found["clock_synchronized"] and not found["synchronized"]:
        yield (
            "no NTP client keeps its clock: install systemd-timesyncd or chrony and wait until `timedatectl` says that it is "
            "synchronized (or set host_clock_synchronized to false)."
        )


def _about_vanished(host: _Host, live: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences about nodes and disks that are in use on the host, but missing in the inventory."""
    ids = {node["id"] for node in host.nodes}
    for node in host.found.get("running", ()):
        if node not in ids:
            yield (
                f"node {node} runs there, and the inventory does not name it: name it again, or move its replicas off "
                f"(`odradek broker drain {node}`) and stop it (`systemctl disable --now odradek@{node}`)."
            )
    root = str(host.values.get("node_disks_root") or _DISKS_ROOT)
    for node in host.nodes:
        wanted = [f"{root}/{disk}/node-{node['id']}" for disk in node["disks"]]
        now = [each for each in host.found.get("directories", ()) if each["node"] == node["id"]]
        for each in now:
            if each["path"] in wanted or not _is_in_service(each, live):
                continue
            disk = each["path"].removeprefix(f"{root}/").partition("/")[0]
            yield (
                f"disk {disk} is in service ({_replicas(each, live)}), and the inventory lacks it: name it again, and run "
                f"odradek.cluster.retire_disk -e odradek_host={host.name} -e odradek_disk={disk} first."
            )
        if now and wanted and now[0]["path"] in wanted[1:] and now[0]["mounted"]:
            yield (
                f"the first disk of node {node['id']} has its metadata log, so it stays the first: name "
                f"{now[0]['path'].removeprefix(f'{root}/').partition('/')[0]} before the others."
            )


def _is_in_service(directory: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """True if a node uses the directory, according to the cluster. If the cluster does not answer, the directory's
    mount decides.
    """
    told = [each for each in live.get("directories", ()) if each["broker"] == directory["node"]]
    if not told:
        return bool(directory["mounted"])
    return any(each["path"] == directory["path"] and each["online"] and not each["released"] for each in told)


def _replicas(directory: Mapping[str, Any], live: Mapping[str, Any]) -> str:
    for each in live.get("directories", ()):
        if each["broker"] == directory["node"] and each["path"] == directory["path"]:
            return f"{each['replicas']} replicas"
    return "by its mount, since the cluster does not answer"


def _one_machine(hosts: Sequence[_Host]) -> list[str]:
    """Return a sentence for each machine that has several names in the inventory."""
    machines: dict[tuple[str, ...], list[_Host]] = defaultdict(list)
    for host in hosts:
        machine = tuple(host.found.get("machine", ()))
        # The machine id alone is not enough: several machines may have it from the same image.
        if len(machine) > 1 and machine[0]:
            machines[machine].append(host)
    return [
        f"{', '.join(each.name for each in same)} are one machine ({', '.join(machine[1:])}): two names would format its "
        "disks twice."
        for machine, same in machines.items()
        if len({str(each.values.get("ansible_host") or each.name) for each in same}) > 1
    ]


def _about_cluster(plan: Mapping[str, Any], live: Mapping[str, Any]) -> Iterator[str]:
    status = live.get("status") or {}
    there = status.get("cluster_id")
    if there is not None and there != plan["cluster_id"]:
        yield f"The cluster that answers is {there}, and odradek_cluster_id is {plan['cluster_id']}."


def _about_members(plan: Mapping[str, Any], live: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences about members of the cluster that the inventory lacks, or that it places on another host."""
    status = live.get("status") or {}
    nodes = {node["id"]: node for node in plan["nodes"]}
    brokers = {broker["broker"]: broker for broker in status.get("brokers") or ()}
    for node, broker in sorted(brokers.items()):
        place = f"{broker['host']}:{broker['port']}"
        state = "online" if broker["online"] else "not online"
        if node not in nodes:
            yield f"The cluster knows broker {node} ({place}, {state}, {broker['replicas']} replicas), which the inventory lacks."
        elif str(broker["host"]) != nodes[node]["address"]:
            yield (
                f"The cluster knows node {node} at {place}, and the inventory has it at {nodes[node]['address']} "
                f"({nodes[node]['host']})."
            )
    for node in (status.get("quorum") or {}).get("voters") or ():
        if node not in nodes and node not in brokers:
            yield f"Controller {node} votes, and the inventory lacks it."


class FilterModule:
    """The filters of this file, in a class with the name that Ansible requires."""

    def filters(self) -> dict[str, Any]:
        return {"verdict": verdict, "looks_of": looks_of}
