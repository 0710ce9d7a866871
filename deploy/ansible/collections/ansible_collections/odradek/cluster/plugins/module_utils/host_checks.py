"""Collects facts of a host that decide whether nodes can run there; the filter `verdict` judges them."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

_LISTENING = "0A"
_CONNECTIONS_AT_ONCE = 32
_UNIT = re.compile(r"odradek@(\d+)\.service")


def _text(path: str) -> str:
    """Read a small file; return "" if it does not exist."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def system_of(os_release: str) -> str:
    """Return name and version of an operating system from the content of os-release."""
    facts = dict(line.split("=", 1) for line in os_release.splitlines() if "=" in line)
    words = (facts.get(key, "").strip("\"'") for key in ("ID", "VERSION_ID"))
    return " ".join(word for word in words if word) or "unknown"


def memory_of(meminfo: str) -> int:
    """Return the size of the host's memory in bytes, from the content of /proc/meminfo; 0 if the content lacks it."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", meminfo, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def local_addresses(fib_trie: str) -> list[str]:
    """Return the host's own IPv4 addresses without loopback, from the content of /proc/net/fib_trie."""
    pairs = re.findall(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL", fib_trie)
    return sorted({each for each in pairs if not each.startswith("127.")})


def _address(text: str) -> str:
    """Convert an address in /proc/net/tcp or tcp6, which consists of words of four bytes in this machine's byte
    order.
    """
    words = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    if len(words) == 4:
        return socket.inet_ntop(socket.AF_INET, words)
    if words.startswith(bytes(10) + b"\xff\xff"):
        return socket.inet_ntop(socket.AF_INET, words[12:])
    return socket.inet_ntop(socket.AF_INET6, words)


def listeners(table: str) -> list[tuple[str, int, str]]:
    """Return (address, port, inode) of each listening socket in the content of /proc/net/tcp or tcp6."""
    found = []
    for line in table.splitlines()[1:]:
        words = line.split()
        if len(words) > 9 and words[3] == _LISTENING:
            address, port = words[1].split(":")
            found.append((_address(address), int(port, 16), words[9]))
    return found


def _owners() -> dict[str, str]:
    """Return the process id of each open socket, by the socket's inode."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            links = [os.readlink(f"/proc/{pid}/fd/{each}") for each in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            # The process has ended since it was listed.
            continue
        for link in links:
            if link.startswith("socket:["):
                found[link[8:-1]] = pid
    return found


def _ports(nodes: list[dict], resolved: dict[str, list[str]]) -> tuple[list[dict], list[int]]:
    """Return the nodes' ports that other programs use (with the program), and the ports on which nodes listen
    already.
    """
    sockets = listeners(_text("/proc/net/tcp")) + listeners(_text("/proc/net/tcp6"))
    wanted = {
        (address, port)
        for node in nodes
        for address in (*resolved.get(node["address"], []), "0.0.0.0", "::")
        for port in node["ports"]
    }
    there = [each for each in sockets if each[:2] in wanted]
    owners = _owners() if there else {}
    taken, ours = {}, set()
    for _, port, inode in there:
        pid = owners.get(inode)
        if pid is not None and _UNIT.search(_text(f"/proc/{pid}/cgroup")):
            ours.add(port)
        else:
            name = _text(f"/proc/{pid}/comm").strip() if pid else ""
            taken[port] = f"{name} (process {pid})" if name else "another program"
    return [{"port": port, "by": by} for port, by in sorted(taken.items())], sorted(ours)


def _resolve(address: str) -> list[str]:
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return sorted({each[4][0] for each in found})


def _is_absent(address: str) -> bool:
    """True if no interface of this host has the address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            return error.errno == errno.EADDRNOTAVAIL
    return False


def _connect(peer: tuple[int, str, int, float]) -> dict | None:
    """Connect to another node's port and disconnect. If the connection fails, return the port with the reason;
    otherwise return None.
    """
    node, address, port, seconds = peer
    try:
        socket.create_connection((address, port), timeout=seconds).close()
    except (OSError, UnicodeError) as error:
        why = (
            "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
        )
        return {"id": node, "address": address, "port": port, "why": why}
    return None


def _unreached(peers: list[dict], seconds: float) -> list[dict]:
    wanted = [(peer["id"], peer["address"], port, seconds) for peer in peers for port in peer["ports"]]
    if not wanted:
        return []
    with ThreadPoolExecutor(_CONNECTIONS_AT_ONCE) as pool:
        return [found for found in pool.map(_connect, wanted) if found is not None]


def directories_of(node: int, properties: str) -> list[str]:
    """Return the log directories that are named in a node's properties file."""
    found = re.search(r"^log\.dirs=(.*)$", properties, re.MULTILINE)
    return [each.strip() for each in found[1].split(",") if each.strip()] if found else []


def _directories() -> list[dict]:
    """List the log directories of all nodes that have a properties file on this host."""
    found = []
    names = os.listdir("/etc/odradek") if os.path.isdir("/etc/odradek") else []
    for name in sorted(names):
        match = re.fullmatch(r"node-(\d+)\.properties", name)
        if match is not None:
            node = int(match[1])
            for path in directories_of(node, _text(f"/etc/odradek/{name}")):
                mounted = os.path.ismount(os.path.dirname(path))
                found.append({"node": node, "path": path, "mounted": mounted})
    return found


def checks(looks: dict, connect_seconds: float) -> dict:
    """Return the facts of a host. `looks` names what to check: the host's `nodes`, the `peers` that they connect to,
    and the time `asked_at` of the request.
    """
    nodes, peers = looks["nodes"], looks["peers"]
    resolved = {address: _resolve(address) for address in {each["address"] for each in (*nodes, *peers)}}
    taken, listening = _ports(nodes, resolved)
    own = {address for node in nodes for address in resolved[node["address"]]}
    units = _output(
        "systemctl", "list-units", "--plain", "--no-legend", "--state=active", "odradek@*.service"
    )
    return {
        "unreached": _unreached(peers, connect_seconds),
        "system": system_of(_text("/etc/os-release")),
        "memory_bytes": memory_of(_text("/proc/meminfo")),
        "synchronized": _output("timedatectl", "show", "--property", "NTPSynchronized", "--value").strip()
        == "yes",
        "machine": [_text("/etc/machine-id").strip(), *local_addresses(_text("/proc/net/fib_trie"))],
        "taken": taken,
        "listening": listening,
        "resolved": resolved,
        "absent": sorted(address for address in own if _is_absent(address)),
        "running": sorted(int(each) for each in _UNIT.findall(units)),
        "cluster_id": _text("/etc/odradek/founded").strip(),
        "directories": _directories(),
        "asked_at": looks["asked_at"],
        # The clock is read last, immediately before the answer.
        "clock_seconds": time.time(),
    }
