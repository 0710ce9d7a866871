"""The place of an attack: a secured cluster of real processes, with a listener of each kind.

It is like the cluster of `odradek dev --secure`, with more listeners. `admin` may do everything, `client` nothing, and
`carol` and `dora` log in by PLAIN at the listener SASL. Honest clients come from 127.0.0.1, attackers from 127.0.0.3.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from odradek.cli.commands.storage import format_storage_of
from odradek.cli.dev_security import DevSecurity
from odradek.env.real import RealEnv
from odradek.wire.uuid_text import uuid_to_text
from testkit.odradek_server import ODRADEK
from testkit.processes import ServerProcess, free_ports, memory_kib, spawn, wait_until_serving
from tests.attacks.raw import ATTACKERS_HOST, HOST, Conn

LISTENERS = ("PLAINTEXT", "SASL", "TLS", "SASL_SSL", "BROKERS")
PROTOCOLS = "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL,SASL_SSL:SASL_SSL,BROKERS:SSL,CONTROLLER:SSL"
PLAIN_USERS = {"carol": "carol-secret", "dora": "dora-secret"}
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@attrs.frozen
class Ports:
    """The ports of a node's listeners. TLS accepts a client certificate; BROKERS and CONTROLLER demand one."""

    PLAINTEXT: int
    SASL: int
    TLS: int
    SASL_SSL: int
    BROKERS: int
    CONTROLLER: int
    METRICS: int


@attrs.frozen
class NodeProcess:
    """A node's process. It need not be a child of this process, since a siege runs each attack in another process."""

    pid: int
    log_path: Path

    def cpu_seconds(self) -> float:
        """Return user and system time of all threads so far."""
        return time.clock_gettime((~self.pid << 3) | 2)

    def rss_kib(self) -> int:
        """Return the resident memory, in KiB."""
        return memory_kib(self.pid, "VmRSS")

    def is_running(self) -> bool:
        """Return False once the process has ended, even if it is still a zombie."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except FileNotFoundError:
            return False

    def log_tail(self, count: int = 20) -> str:
        """Return the last lines that the node wrote."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-count:])


@attrs.frozen
class AttackedNode:
    """One node of the place."""

    node_id: int
    process: NodeProcess
    ports: Ports
    directory: Path

    @property
    def log(self) -> str:
        return (self.directory / "server.log").read_text(errors="replace")

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        return sum(
            float(found[1]) for found in re.finditer(rf"^{name}(?:{{.*}})? (\S+)$", self.page(), re.MULTILINE)
        )

    def page(self) -> str:
        """Return the text of the metrics page."""
        with urllib.request.urlopen(f"http://{HOST}:{self.ports.METRICS}/metrics", timeout=60) as page:
            text: str = page.read().decode()
        return text

    def stalls(self) -> dict[float, int]:
        """Return how often the node's loop was late, by the upper bound of the delay in seconds. The node
        measures it."""
        found = re.findall(r'odradek_loop_late_seconds_bucket{le="([^"]+)"} (\d+)', self.page())
        stalls, below = {}, 0
        for bound, count in found:
            stalls[float(bound)] = int(count) - below
            below = int(count)
        return stalls


@attrs.frozen
class Place:
    """A cluster under attack, and the secrets of its users."""

    nodes: tuple[AttackedNode, ...]
    security: DevSecurity

    @property
    def node(self) -> AttackedNode:
        """Return the attacked node: the first one of the cluster."""
        return self.nodes[0]

    @property
    def ports(self) -> Ports:
        return self.node.ports

    @property
    def pid(self) -> int:
        return self.node.process.pid

    def password(self, user: str) -> str:
        return (self.security.directory / f"{user}.password").read_text()

    def certificate(self, name: str) -> Path:
        """Return a file with key and certificate: `admin` or `node`."""
        return self.security.directory / f"{name}.pem"

    def admin(self) -> Conn:
        """Connect from an honest address as the user who may do everything."""
        return Conn(self.ports.SASL, source=HOST, client_id="admin").login("admin", self.password("admin"))

    def client(self, *, tls: bool = False, source: str = ATTACKERS_HOST) -> Conn:
        """Connect as the user who has no rights."""
        port = self.ports.SASL_SSL if tls else self.ports.SASL
        return Conn(port, tls=tls, source=source).login("client", self.password("client"))

    def stranger(self, listener: str = "SASL", *, source: str = ATTACKERS_HOST) -> Conn:
        """Connect without a login, over TLS if the listener asks for it."""
        tls = listener in ("TLS", "SASL_SSL", "BROKERS", "CONTROLLER")
        return Conn(getattr(self.ports, listener), tls=tls, source=source)

    def check_alive(self) -> None:
        """Raise `AssertionError` if a node has ended."""
        for node in self.nodes:
            assert node.process.is_running(), f"node {node.node_id} ended:\n{node.process.log_tail()}"


@contextmanager
def attacked(directory: Path, count: int = 1, settings: Mapping[str, str] | None = None) -> Iterator[Place]:
    """Format and start a cluster, and stop it after the block. `settings` are added to the properties of all nodes."""
    directory.mkdir(parents=True, exist_ok=True)
    security = DevSecurity(directory)
    ports = [Ports(*free_ports(7)) for _ in range(count)]
    security.make(",".join(f"{HOST}:{each.SASL_SSL}" for each in ports))
    files = _formatted(directory, security, ports, settings or {})
    processes = [_launched(path, each) for path, each in zip(files, ports, strict=True)]
    try:
        for process in processes:
            wait_until_serving(process)
        nodes = tuple(
            AttackedNode(number, NodeProcess(process.pid, process.log_path), of_node, process.log_path.parent)
            for number, (process, of_node) in enumerate(zip(processes, ports, strict=True), 1)
        )
        yield Place(nodes, security)
    finally:
        # Stop all at once: if they stopped in turn, the last ones would find no majority and wait for it.
        for process in processes:
            if process.is_running():
                process.process.terminate()
        for process in processes:
            process.stop()


def _launched(properties: Path, ports: Ports) -> ServerProcess:
    return spawn(
        f"Odradek {properties.parent.name}",
        [ODRADEK, "server", properties],
        bootstrap=f"{HOST}:{ports.PLAINTEXT}",
        log_path=properties.with_name("server.log"),
    )


def _formatted(
    directory: Path, security: DevSecurity, ports: Sequence[Ports], more: Mapping[str, str]
) -> list[Path]:
    """Write each node's properties file and format its directory. Return the files."""
    new_uuid = RealEnv().new_uuid
    cluster_id = uuid_to_text(new_uuid())
    voters = ",".join(
        f"{number}@{HOST}:{each.CONTROLLER}:{uuid_to_text(new_uuid())}"
        for number, each in enumerate(ports, 1)
    )
    files = []
    for number, each in enumerate(ports, 1):
        home = directory / f"node-{number}"
        home.mkdir(exist_ok=True)
        path = home / "server.properties"
        keys = {**_settings(home, security, number, each, ports), **more}
        path.touch(mode=0o600)
        path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        format_storage_of(
            str(path),
            cluster_id=cluster_id,
            ignore_formatted=False,
            initial_controllers=voters,
            users=security.first_users(),
        )
        files.append(path)
    return files


def _settings(
    home: Path, security: DevSecurity, number: int, own: Ports, ports: Sequence[Ports]
) -> dict[str, str]:
    replicas, in_sync = ("3", "2") if len(ports) >= 3 else ("1", "1")
    listeners = ",".join(f"{name}://{HOST}:{getattr(own, name)}" for name in LISTENERS)
    users = " ".join(f'user_{name}="{password}"' for name, password in PLAIN_USERS.items())
    dev = security.node_settings(f"{HOST}:1", f"{HOST}:1", f"{HOST}:1")
    return {
        **dev,
        "process.roles": "broker,controller",
        "node.id": str(number),
        "controller.quorum.bootstrap.servers": ",".join(f"{HOST}:{each.CONTROLLER}" for each in ports),
        "listeners": f"{listeners},CONTROLLER://{HOST}:{own.CONTROLLER}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": PROTOCOLS,
        "controller.listener.names": "CONTROLLER",
        "listener.name.tls.ssl.client.auth": "requested",
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {users};",
        "log.dirs": str(home / "data"),
        "odradek.metrics.listener": f"{HOST}:{own.METRICS}",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": "0",
    }
