"""A cluster of node processes, which can be prepared, started, killed, paused, isolated, and restored.

Every node is broker and controller, unless there are separate controllers. Only the main thread may start processes:
a child is killed when the thread that started it ends (`setpriv --pdeathsig`). So no process outlives a run.
"""

from __future__ import annotations

import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from jepsen_tests import probe
from jepsen_tests.network import Network
from jepsen_tests.systems import System

SETTINGS: Mapping[str, str] = {
    "controller.listener.names": "CONTROLLER",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.num.partitions": "3",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
}
FASTER: Mapping[str, str] = {
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "1000",
    "replica.lag.time.max.ms": "4000",
}
"""Settings with shorter timeouts, so that leaders and in-sync replicas change several times in a run of a minute."""
_READY_SECONDS = 90.0


class ClusterFailed(Exception):
    """Raised if a node has ended, or the cluster did not start. The message ends with the tail of a log."""


@attrs.define
class Node:
    """One node: its addresses, its files, and its process while it runs."""

    number: int
    host: str
    port: int
    controller_port: int
    directory: Path
    roles: str = "broker,controller"
    process: subprocess.Popen[bytes] | None = None
    paused: bool = False
    starts: int = 0

    @property
    def properties(self) -> Path:
        return self.directory / "server.properties"

    @property
    def log_path(self) -> Path:
        return self.directory / "server.log"

    @property
    def is_broker(self) -> bool:
        return "broker" in self.roles

    @property
    def is_controller(self) -> bool:
        return "controller" in self.roles

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def cpu_seconds(self) -> float:
        """Return the CPU time (user and system) of all threads of the running process, in seconds."""
        assert self.process is not None
        return time.clock_gettime(((~self.process.pid) << 3) | 2)

    def log_tail(self, lines: int = 15) -> str:
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


@attrs.define
class Cluster:
    """The nodes of one system on one network. `settings` override all properties except addresses.

    If `controllers` is above 0, the first `size` nodes are only brokers, and `controllers` further nodes are only
    controllers.
    """

    system: System
    network: Network
    directory: Path
    settings: Mapping[str, str] = attrs.field(factory=dict)
    size: int = 3
    controllers: int = 0
    disks: int = 1
    """The number of log directories of each node."""
    nodes: dict[int, Node] = attrs.field(factory=dict)

    @property
    def brokers(self) -> dict[int, Node]:
        """The nodes that serve clients."""
        return {number: node for number, node in self.nodes.items() if node.is_broker}

    def prepare(self) -> None:
        """Write the properties and format the directories of all nodes. Raises `systems.Unavailable`."""
        numbers = range(1, self.size + self.controllers + 1)
        ports = iter(free_ports(2 * len(numbers)))
        self.nodes = {
            number: Node(
                number,
                self.network.address(number),
                9092 if self.network.can_partition else next(ports),
                9093 if self.network.can_partition else next(ports),
                self.directory / f"node-{number}",
                self._roles(number),
            )
            for number in numbers
        }
        for node in self.nodes.values():
            node.directory.mkdir(parents=True)
            node.properties.write_text(
                "".join(f"{key}={value}\n" for key, value in self._properties(node).items())
            )
            self.system.format(node.properties)

    def _roles(self, number: int) -> str:
        if not self.controllers:
            return "broker,controller"
        return "broker" if number <= self.size else "controller"

    def _properties(self, node: Node) -> dict[str, str]:
        voters = ",".join(
            f"{each.number}@{each.host}:{each.controller_port}"
            for each in self.nodes.values()
            if each.is_controller
        )
        listeners = []
        if node.is_broker:
            listeners.append(f"PLAINTEXT://{node.host}:{node.port}")
        if node.is_controller:
            listeners.append(f"CONTROLLER://{node.host}:{node.controller_port}")
        return {
            **SETTINGS,
            **self.settings,
            "process.roles": node.roles,
            "node.id": str(node.number),
            "controller.quorum.voters": voters,
            "listeners": ",".join(listeners),
            "advertised.listeners": listeners[0],
            "log.dirs": ",".join(
                str(node.directory / ("data" if disk == 1 else f"data-{disk}"))
                for disk in range(1, self.disks + 1)
            ),
        }

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{node.host}:{node.port}" for node in self.brokers.values())

    def start(self, number: int) -> None:
        """Start a node unless it runs. Do not wait until it serves."""
        node = self.nodes[number]
        if node.is_running:
            return
        watched = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with node.log_path.open("ab") as log:
            node.process = subprocess.Popen(
                [*watched, *self.network.prefix(number), *self.system.command(node.properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=node.directory,
            )
        node.paused = False
        node.starts += 1

    def start_all(self) -> None:
        """Start every node, and wait until each of them knows all the others. Raises `ClusterFailed`."""
        for number in self.nodes:
            self.start(number)
        self.wait_until_whole()

    def wait_until_whole(self, timeout_seconds: float = _READY_SECONDS) -> float:
        """Wait until every broker's Metadata has all brokers, and every controller answers. Return the seconds that
        this took.

        Raises `ClusterFailed` if a node ends, or if it takes too long.
        """
        started = time.monotonic()
        missing = dict(self.nodes)
        while missing:
            for number, node in list(missing.items()):
                if not node.is_running:
                    raise ClusterFailed(f"node {number} ended:\n{node.log_tail()}")
                if self.serves(number):
                    del missing[number]
            if missing and time.monotonic() - started > timeout_seconds:
                tails = "\n".join(f"node {number}:\n{node.log_tail()}" for number, node in missing.items())
                raise ClusterFailed(f"not all nodes serve after {timeout_seconds:.0f} s\n{tails}")
            time.sleep(0.05 if missing else 0.0)
        return time.monotonic() - started

    def serves(self, number: int) -> bool:
        """Ask this node once, and return whether it serves and, if it is a broker, knows all others."""
        node = self.nodes[number]
        if node.is_broker:
            return probe.brokers(node.host, node.port) == sorted(self.brokers)
        return probe.answers(node.host, node.controller_port)

    def kill(self, number: int) -> None:
        """Send SIGKILL to a node, and reap it."""
        node = self.nodes[number]
        if node.process is not None:
            node.process.kill()
            node.process.wait()
        node.paused = False

    def pause(self, number: int) -> None:
        """Pause a node by SIGSTOP: its connections stay open, but it does not answer."""
        node = self.nodes[number]
        if node.process is not None and node.is_running:
            node.process.send_signal(signal.SIGSTOP)
            node.paused = True

    def resume(self, number: int) -> None:
        """Resume a node by SIGCONT."""
        node = self.nodes[number]
        if node.process is not None and node.is_running and node.paused:
            node.process.send_signal(signal.SIGCONT)
        node.paused = False

    def unexpected_ends(self) -> Sequence[Node]:
        """Return the nodes whose process has ended without being killed by this object."""
        return [
            node
            for node in self.nodes.values()
            if node.process is not None and node.process.poll() not in (None, -signal.SIGKILL)
        ]

    def active_controller(self) -> int | None:
        """Ask all nodes for the quorum's leader, and return the leader with the highest epoch; None if no node names a
        leader.
        """
        found = [
            answer
            for node in self.nodes.values()
            if node.is_running
            and not node.paused
            and (answer := probe.active_controller(node.host, self._any_port(node), 0.5)) is not None
        ]
        return max(found, key=lambda answer: answer[1])[0] if found else None

    @staticmethod
    def _any_port(node: Node) -> int:
        return node.port if node.is_broker else node.controller_port

    def close(self) -> None:
        """Kill every node."""
        for number in self.nodes:
            self.kill(number)


def free_ports(count: int) -> list[int]:
    """Return `count` different loopback ports without a listener.

    They lie outside the range of outgoing connections, because such a connection could take the port of a dead node.
    """
    ephemeral, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    candidates = random.sample(range(10_000, max(ephemeral, 20_000)), 10 * count)
    free = [port for port in candidates if _is_free(port)]
    return free[:count]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
