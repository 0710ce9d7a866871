"""A node with TLS listeners, as a process, for attacks and changes of certificates."""

from __future__ import annotations

import re
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from odradek.wire.messages.api_versions import ApiVersionsRequest
from testkit.odradek_server import start_odradek
from testkit.processes import ServerProcess, combined_node_properties, free_ports
from testkit.raw_requests import frame
from tests.security.certificates import Authority, Issued

HOST = "127.0.0.1"
HONEST_HOST = "127.0.0.2"
"""The address of honest clients."""
TIMEOUT_SECONDS = 20.0
ASK = bytes(frame(ApiVersionsRequest("attack", "1.0"), 3))


@attrs.frozen
class TlsNode:
    """A running node, the addresses of its listeners, and its authority."""

    process: ServerProcess
    directory: Path
    authority: Authority
    plaintext: int
    tls: int
    """A TLS listener that requires no certificate of clients."""
    mutual: int
    """A TLS listener that requires a certificate of each client."""
    metrics: int

    @property
    def log(self) -> str:
        return (self.directory / "server.log").read_text()

    @property
    def certificate_path(self) -> Path:
        return self.directory / "node.pem"

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        with urllib.request.urlopen(f"http://{HOST}:{self.metrics}/metrics") as page:
            text = page.read().decode()
        return sum(
            float(found[1]) for found in re.finditer(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        )

    def context(self, certificate: Issued | None = None) -> ssl.SSLContext:
        """Return the TLS context of an honest client."""
        context = ssl.create_default_context(cadata=self.authority.pem)
        if certificate is not None:
            path = certificate.write(self.directory / f"{id(certificate)}.pem")
            context.load_cert_chain(path)
        return context

    def connect(self, context: ssl.SSLContext, port: int | None = None, name: str = HOST) -> ssl.SSLSocket:
        """Connect and shake hands, from an address that attackers do not use. Raises `OSError`."""
        plain = socket.create_connection((HOST, port or self.tls), TIMEOUT_SECONDS, (HONEST_HOST, 0))
        try:
            return context.wrap_socket(plain, server_hostname=name)
        except BaseException:
            plain.close()
            raise


def ask(connection: socket.socket) -> bytes:
    """Send ApiVersions. Return the answer, which is empty if the node closes the connection. Raises `OSError`."""
    connection.sendall(ASK)
    stream = connection.makefile("rb")
    size = stream.read(4)
    return stream.read(int.from_bytes(size)) if len(size) == 4 else b""


def settings(directory: Path, ports: list[int]) -> dict[str, str]:
    """Return the node's configuration."""
    plaintext, controller, tls, mutual, metrics = ports
    listeners = f"TLS://{HOST}:{tls},MUTUAL://{HOST}:{mutual},PLAINTEXT://{HOST}:{plaintext}"
    return {
        **combined_node_properties(directory, plaintext, controller),
        "listeners": f"CONTROLLER://{HOST}:{controller},{listeners}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL,MUTUAL:SSL",
        "inter.broker.listener.name": "PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / "node.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / "authority.pem"),
        "listener.name.mutual.ssl.client.auth": "required",
        "odradek.metrics.listener": f"{HOST}:{metrics}",
    }


def start_tls_node(directory: Path, **changes: str) -> TlsNode:
    """Make certificates, and start the node. The caller ends the process."""
    ports = free_ports(5)
    authority = Authority()
    authority.write(directory / "authority.pem")
    authority.issue("node", (HOST, "localhost"), with_rsa=True).write(directory / "node.pem")
    process = start_odradek(directory, settings={**settings(directory, ports), **changes})
    plaintext, _, tls, mutual, metrics = ports
    return TlsNode(process, directory, authority, plaintext, tls, mutual, metrics)


@pytest.fixture(scope="session")
def tls_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsNode]:
    """The node, for the whole session."""
    node = start_tls_node(tmp_path_factory.mktemp("tls"))
    try:
        yield node
        assert node.process.is_running(), f"the node ended during the tests:\n{node.process.log_tail()}"
    finally:
        node.process.stop()
