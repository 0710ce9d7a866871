"""The files that `odradek dev --secure` makes: an authority, the nodes' certificate, two users, and files of client
keys.

DIR/security has secrets, and only its owner can read it. DIR/admin.properties is for the super user `admin`;
DIR/client.properties for `client`, who has no rights yet. Clients use SASL_SSL; nodes authenticate each other by
their certificate.
"""

from __future__ import annotations

import datetime
import os
import secrets
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import CertificateBuilder, Name

__all__ = ["CLIENT_LISTENER", "USERS", "DevSecurity"]

CLIENT_LISTENER = "SASL_SSL"
NODE_NAME = "odradek-node"
USERS = ("admin", "client")
MECHANISM = "SCRAM-SHA-512"
_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_TOKEN_SECRET = "token.secret"
_BOOTSTRAP = "bootstrap.servers"
_YEARS = 10


class DevSecurity:
    """The secrets of a local cluster's directory: made at the first start, and kept for all later starts."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.directory = data / "security"

    @property
    def exists(self) -> bool:
        return (self.directory / "scram.secret").exists()

    def make(self, bootstrap: str) -> None:
        """Write all missing files. `bootstrap` has the addresses of the nodes, which may differ at each start."""
        if self.exists:
            self._make_token_secret()
            self._make_console_keys()
            for user in USERS:
                self._point_client_keys(user, bootstrap)
            return
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_certificates(self._write)
        for user in USERS:
            password = secrets.token_urlsafe(18)
            self._write(f"{user}.password", password.encode())
            self._write_client_keys(user, password, bootstrap)
        self._make_token_secret()
        self._make_console_keys()
        # Write this file last, because its presence shows that the directory is complete.
        self._write("scram.secret", secrets.token_urlsafe(32).encode())

    def _make_token_secret(self) -> None:
        """Write the key of delegation tokens if it is missing, because directories of an earlier version lack
        it.
        """
        if not (self.directory / _TOKEN_SECRET).exists():
            self._write(_TOKEN_SECRET, secrets.token_urlsafe(32).encode())

    def _make_console_keys(self) -> None:
        """Write the consoles' file of client keys if it is missing. The controllers' listener accepts only clients with a
        certificate, and the console reads the history there. It shows the history only to users who may describe the
        cluster and its rules.
        """
        if self.console_file.exists():
            return
        keys = {
            "odradek.console.as.certificate": "true",
            "odradek.controller.security.protocol": "SSL",
            "odradek.controller.ssl.keystore.location": str(self.directory / "admin.pem"),
            "odradek.controller.ssl.keystore.type": "PEM",
        }
        _write_secret(self.console_file, "".join(f"{key}={value}\n" for key, value in keys.items()).encode())

    @property
    def console_file(self) -> Path:
        """The path of the file of client keys of the nodes' consoles."""
        return self.directory / "console.properties"

    def first_users(self) -> list[str]:
        """List the users in the format of the option `storage format --add-scram`."""
        return [
            f"{MECHANISM}=[name={user},passwordfile={self.directory / f'{user}.password'}]" for user in USERS
        ]

    def node_settings(self, clients: str, brokers: str, controller: str) -> dict[str, str]:
        """Make the configuration keys of a node, from the addresses of its listeners."""
        listeners = f"{CLIENT_LISTENER}://{clients},BROKERS://{brokers}"
        return {
            "listeners": f"{listeners},CONTROLLER://{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": f"{CLIENT_LISTENER}:SASL_SSL,BROKERS:SSL,CONTROLLER:SSL",
            "inter.broker.listener.name": "BROKERS",
            "sasl.enabled.mechanisms": MECHANISM,
            "authorizer.class.name": _AUTHORIZER,
            "super.users": f"User:{USERS[0]};User:CN={NODE_NAME};User:CN={USERS[0]}",
            "odradek.scram.secret": (self.directory / "scram.secret").read_text(),
            "delegation.token.secret.key": (self.directory / _TOKEN_SECRET).read_text(),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.directory / "node.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.directory / "authority.pem"),
            "odradek.console.client.config": str(self.console_file),
            "listener.name.brokers.ssl.client.auth": "required",
            "listener.name.controller.ssl.client.auth": "required",
        }

    def _write(self, name: str, data: bytes) -> None:
        _write_secret(self.directory / name, data)

    def client_file(self, user: str) -> Path:
        """Return the path of the file of client keys that a user passes to commands."""
        return self.data / f"{user}.properties"

    def _point_client_keys(self, user: str, bootstrap: str) -> None:
        """Update the addresses in a file of client keys, and leave all other lines unchanged. If the user has
        removed the file, do not create it again.
        """
        path = self.client_file(user)
        if not path.exists():
            return
        lines = path.read_text().splitlines()
        new = [f"{_BOOTSTRAP}={bootstrap}" if line.startswith(f"{_BOOTSTRAP}=") else line for line in lines]
        if new != lines:
            _write_secret(path, "".join(f"{line}\n" for line in new).encode())

    def _write_client_keys(self, user: str, password: str, bootstrap: str) -> None:
        keys = {
            _BOOTSTRAP: bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": f'{_MODULE} required username="{user}" password="{password}";',
            "ssl.truststore.location": str(self.directory / "authority.pem"),
            "ssl.truststore.type": "PEM",
        }
        if user == USERS[0]:  # the controllers' listener accepts only clients with a certificate
            keys |= {
                "odradek.controller.security.protocol": "SSL",
                "odradek.controller.ssl.keystore.location": str(self.directory / "admin.pem"),
                "odradek.controller.ssl.keystore.type": "PEM",
            }
        text = "".join(f"{key}={value}\n" for key, value in keys.items())
        _write_secret(self.client_file(user), text.encode())


def _write_secret(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        # Set the mode explicitly, because an existing file keeps its mode when it is written.
        os.fchmod(descriptor, 0o600)
        file.write(data)


def _make_certificates(write: Callable[[str, bytes], None]) -> None:
    """Make an authority, one certificate for all nodes of this machine, and one for the administrator."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    authority_key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "odradek dev authority")])
    authority = (
        _begin(issuer, issuer, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    names = [
        x509.DNSName("localhost"),
        x509.IPAddress(ip_address("127.0.0.1")),
        x509.IPAddress(ip_address("::1")),
    ]
    for file, common_name in (("node.pem", NODE_NAME), ("admin.pem", USERS[0])):
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
        own_key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _begin(subject, issuer, own_key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
            .sign(authority_key, hashes.SHA256())
        )
        key = own_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write(file, key + certificate.public_bytes(Encoding.PEM))
    write("authority.pem", authority.public_bytes(Encoding.PEM))


def _begin(subject: Name, issuer: Name, key: EllipticCurvePrivateKey) -> CertificateBuilder:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
    )
