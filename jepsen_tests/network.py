"""The network between the nodes: one network namespace per node, connected by a bridge. If the machine allows no
namespaces, the nodes use loopback.

`enter_own_network` moves the calling process into a new namespace, which has the bridge and the clients of the run.
Each node gets a namespace of its own, which a sleeping process keeps open. A veth pair connects it with the bridge.
All this disappears when the processes end, for any reason.

A policy rule on a packet's source address drops the packet silently at the target, as a dead cable does (`ip rule add
from ADDRESS blackhole`). This needs iproute2, but no netfilter. Two settings make it work for open connections, too.
The kernel's rule for local addresses is moved behind this rule. Early demultiplexing is switched off, since it would
bypass the rules.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import attrs

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SUBNET = "10.77.0"
_BRIDGE = "jepsen0"
_CLIENTS = 254
_TOOLS = ("ip", "unshare", "nsenter", "setpriv")


class Network(Protocol):
    """The network as used by a cluster and its nemesis. Nodes are numbered from 1."""

    @property
    def can_partition(self) -> bool:
        """True if links can be cut."""
        ...

    def address(self, node: int) -> str:
        """Return the address on which the node listens, and at which clients reach it."""
        ...

    def prefix(self, node: int) -> list[str]:
        """Return the words to put before a command, so that it runs in the node's network."""
        ...

    def block(self, source: int, target: int) -> None:
        """Drop packets from `source` to `target` from now on. Does nothing if they are dropped already."""
        ...

    def unblock(self, source: int, target: int) -> None:
        """Stop dropping packets from `source` to `target`."""
        ...

    def close(self) -> None:
        """Release all resources of the network."""
        ...


@attrs.frozen
class Loopback:
    """All nodes on 127.0.0.1. Links between them cannot be cut."""

    can_partition: bool = False

    def address(self, node: int) -> str:
        return "127.0.0.1"

    def prefix(self, node: int) -> list[str]:
        return []

    def block(self, source: int, target: int) -> None:
        raise AssertionError("links on loopback cannot be cut")

    def unblock(self, source: int, target: int) -> None:
        raise AssertionError("links on loopback cannot be cut")

    def close(self) -> None:
        """Return at once: loopback has no resources to release."""


@attrs.define
class Namespaces:
    """A network in which each node has a network namespace of its own. The function `namespaces` makes it."""

    _holders: dict[int, subprocess.Popen[bytes]]
    _blocked: set[tuple[int, int]] = attrs.field(factory=set)
    can_partition: bool = True

    def address(self, node: int) -> str:
        return f"{_SUBNET}.{node}"

    def prefix(self, node: int) -> list[str]:
        return _enter(self._holders[node])

    def block(self, source: int, target: int) -> None:
        if (source, target) not in self._blocked:
            self._blocked.add((source, target))
            self._rule("add", source, target)

    def unblock(self, source: int, target: int) -> None:
        if (source, target) in self._blocked:
            self._blocked.discard((source, target))
            self._rule("del", source, target)

    def close(self) -> None:
        for holder in self._holders.values():
            holder.kill()
            holder.wait()
        _run("ip", "link", "del", _BRIDGE)

    def _rule(self, verb: str, source: int, target: int) -> None:
        rule = ("ip", "rule", verb, "pref", str(source), "from", self.address(source), "blackhole")
        _run(*self.prefix(target), *rule)


def enter_own_network() -> bool:
    """Move this process into a new network namespace, in which it is root. Return False if that is not possible.

    Call this before any thread or child process starts. It needs root, or a kernel that allows user namespaces.
    """
    if any(shutil.which(tool) is None for tool in _TOOLS):
        return False
    user, group = os.geteuid(), os.getegid()
    flags = _CLONE_NEWNET if user == 0 else _CLONE_NEWNET | _CLONE_NEWUSER
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        return False
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _run("ip", "link", "set", "lo", "up")
    return True


def namespaces(nodes: Sequence[int]) -> Namespaces:
    """Make the bridge and one namespace per node; `enter_own_network` must have been called before.

    Raises `subprocess.CalledProcessError` with the output of `ip` if the kernel lacks a feature.
    """
    _run("ip", "link", "add", _BRIDGE, "type", "bridge")
    _run("ip", "addr", "add", f"{_SUBNET}.{_CLIENTS}/24", "dev", _BRIDGE)
    _run("ip", "link", "set", _BRIDGE, "up")
    network = Namespaces({node: _hold_namespace() for node in nodes})
    for node in nodes:
        enter = network.prefix(node)
        _run("ip", "link", "add", f"node{node}", "type", "veth", "peer", "name", f"up{node}")
        _run("ip", "link", "set", f"up{node}", "netns", str(network._holders[node].pid))
        _run("ip", "link", "set", f"node{node}", "master", _BRIDGE, "up")
        _run(*enter, "ip", "link", "set", "lo", "up")
        _run(*enter, "ip", "addr", "add", f"{network.address(node)}/24", "dev", f"up{node}")
        _run(*enter, "ip", "link", "set", f"up{node}", "up")
        _run(*enter, "ip", "rule", "add", "pref", "100", "lookup", "local")
        _run(*enter, "ip", "rule", "del", "pref", "0")
        _run(*enter, "sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_early_demux")
    return network


def _hold_namespace() -> subprocess.Popen[bytes]:
    """Start a process that keeps a new network namespace open, and wait until the namespace exists."""
    holder = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", "echo; exec sleep infinity"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    return holder


def _enter(holder: subprocess.Popen[bytes]) -> list[str]:
    return ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
