"""A node with one listener of each kind, as a process, for the tests of logins.

Users are `alice` and `bob` by SCRAM (`alice-secret`, `bob-secret`), `carol` by PLAIN (`carol-secret`), and owners of a
token of `issuer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trustme

from odradek.cli.commands.storage import format_storage_of
from testkit.odradek_server import launch_odradek
from testkit.processes import ServerProcess, combined_node_properties, free_ports
from tests.security.logins.issuer import Issuer

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
TOKEN_KEY = "a secret of all nodes"
SCRAM_USERS = {"alice": "alice-secret", "bob": "bob-secret", "jürgen, é=è": "jürgen, é=è-secret"}


@attrs.frozen
class SecuredNode:
    """A running node, and the addresses of its listeners."""

    process: ServerProcess
    directory: Path
    plaintext: str
    sasl: str
    tls: str
    """A TLS listener. A client needs no certificate, but its name is the principal if there is one."""
    sasl_tls: str
    renewing: str
    """A SASL listener on which a login lasts three seconds."""
    controller: str
    issuer: Issuer
    """The issuer whose tokens the node accepts. The node reads its keys from `jwks.json`."""

    @property
    def log(self) -> str:
        return (self.directory / "server.log").read_text()

    @property
    def authority(self) -> str:
        """The path of the authority's certificate."""
        return str(self.directory / "authority.pem")

    @property
    def client_pem(self) -> str:
        """The path of a client's key and certificate, for `CN=dora`."""
        return str(self.directory / "dora.pem")


def make_certificates(directory: Path) -> None:
    """Make an authority, and certificates of the node and of a client."""
    directory.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "authority.pem")
    authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(
        directory / "node.pem"
    )
    client = authority.issue_cert("dora@example.org", common_name="dora")
    client.private_key_and_cert_chain_pem.write_to_path(directory / "dora.pem")


def properties(directory: Path, ports: list[int]) -> dict[str, str]:
    """Return the node's configuration. The plaintext listener is last, since tests wait for the start at the last
    listener."""
    plaintext, controller, sasl, renewing, tls, sasl_tls = ports
    listeners = [
        f"SASL://127.0.0.1:{sasl}",
        f"TLS://127.0.0.1:{tls}",
        f"SASL_TLS://127.0.0.1:{sasl_tls}",
        f"RENEWING://127.0.0.1:{renewing}",
        f"PLAINTEXT://127.0.0.1:{plaintext}",
    ]
    jaas = f'{PLAIN_MODULE} required user_carol="carol-secret" user_admin="admin-secret";'
    return {
        **combined_node_properties(directory, plaintext, controller),
        "listeners": ",".join([f"CONTROLLER://127.0.0.1:{controller}", *listeners]),
        "advertised.listeners": ",".join(listeners),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,"
        "RENEWING:SASL_PLAINTEXT,TLS:SSL,SASL_TLS:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / "node.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / "authority.pem"),
        "listener.name.tls.ssl.client.auth": "requested",
        "listener.name.sasl_tls.plain.sasl.jaas.config": jaas,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{directory}/jwks.json",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "50",
        "sasl.oauthbearer.expected.audience": "kafka",
        "sasl.oauthbearer.expected.issuer": "https://issuer",
        "listener.name.sasl.plain.sasl.jaas.config": jaas,
        "listener.name.renewing.plain.sasl.jaas.config": jaas,
        "listener.name.renewing.connections.max.reauth.ms": "3000",
        "connection.failed.authentication.delay.ms": "10",
        "odradek.scram.secret": "a secret of all brokers",
        "delegation.token.secret.key": TOKEN_KEY,
        "inter.broker.listener.name": "PLAINTEXT",
    }


def start(directory: Path, settings: dict[str, str], users: list[str]) -> ServerProcess:
    """Format the node with its first users, and start it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    format_storage_of(str(path), cluster_id=None, ignore_formatted=False, users=users)
    return launch_odradek(path)


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    """The node, for the whole session."""
    directory = tmp_path_factory.mktemp("secured")
    ports = free_ports(6)
    make_certificates(directory)
    issuer = Issuer()
    (directory / "jwks.json").write_bytes(issuer.document())
    users = [
        f'{mechanism}=[name="{name}",password="{password}"]'
        for name, password in SCRAM_USERS.items()
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
    ]
    server = start(directory, properties(directory, ports), users)
    try:
        plaintext, controller, sasl, renewing, tls, sasl_tls = (f"127.0.0.1:{port}" for port in ports)
        yield SecuredNode(server, directory, plaintext, sasl, tls, sasl_tls, renewing, controller, issuer)
        assert server.is_running(), f"the node ended during the tests:\n{server.log_tail()}"
    finally:
        server.stop()
