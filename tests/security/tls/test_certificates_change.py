"""Certificates of a running node change, by their files and by dynamic values.

New connections use the new certificates, and open connections go on.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509

from odradek.client.admin import AlterConfig, ConfigOperation, ConfigResource, ResourceType
from odradek.client.shells.blocking import Client
from odradek.wire.errors import KafkaError
from tests.security.certificates import Authority
from tests.security.tls.tls_node import HOST, TIMEOUT_SECONDS, TlsNode, ask, start_tls_node

BROKER = ConfigResource(ResourceType.BROKER, "1")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsNode]:
    """A node whose certificates these tests change."""
    found = start_tls_node(tmp_path_factory.mktemp("changing"))
    try:
        yield found
    finally:
        found.process.stop()


def shown(node: TlsNode) -> str:
    """Return the common name of the certificate that a new connection gets."""
    with node.connect(node.context()) as connection:
        der = connection.getpeercert(binary_form=True)
    assert der is not None
    subject = x509.load_der_x509_certificate(der).subject
    return str(subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


def wait_for(is_there: Callable[[], bool]) -> None:
    """Wait until the node has noticed a change. It checks its files each second."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not is_there():
        assert time.monotonic() < deadline, f"the node has not noticed the change within {TIMEOUT_SECONDS} s"
        time.sleep(0.05)


def test_files_are_followed(node: TlsNode) -> None:
    """A changed certificate file is used for new connections.

    A broken file is logged and counted, and changes nothing.
    """
    with node.connect(node.context()) as before:
        assert ask(before)
        node.authority.issue("second", (HOST,)).write(node.certificate_path)
        wait_for(lambda: shown(node) == "second")
        assert ask(before)
        node.certificate_path.write_text("broken")
        wait_for(lambda: node.metric("odradek_certificate_reload_failures_total") > 0)
        assert "tls.not_reloaded" in node.log
        assert shown(node) == "second"
        node.authority.issue("third", (HOST,), days=(-1, 5)).write(node.certificate_path)
        wait_for(lambda: shown(node) == "third")
        assert ask(before)


def test_the_end_of_a_certificate_is_told_of(node: TlsNode) -> None:
    """A metric shows the time that each listener's certificate is valid.

    In the last thirty days a warning is logged once.
    """
    node.authority.issue("short", (HOST,), days=(-1, 5)).write(node.certificate_path)
    wait_for(lambda: shown(node) == "short")
    wait_for(lambda: "tls.certificate_ends" in node.log)
    # Of two listeners.
    wait_for(lambda: 9.9 < node.metric("odradek_certificate_time_left_seconds") / 86_400 < 10.1)


def _alter(node: TlsNode, **changes: str | None) -> None:
    """Set or remove keys of the listener that is named TLS. Raises `KafkaError`."""
    altered = [
        AlterConfig(
            f"listener.name.tls.ssl.{key}",
            text,
            ConfigOperation.DELETE if text is None else ConfigOperation.SET,
        )
        for key, text in changes.items()
    ]
    with Client(f"{HOST}:{node.plaintext}") as client:
        ((_, error),) = client.admin.incremental_alter_configs({BROKER: altered})
        if error is not None:
            raise error


def test_dynamic_values_are_followed(node: TlsNode, tmp_path: Path) -> None:
    """A broker sets `listener.name.tls.ssl.keystore.location` (KIP-226).

    The listener TLS then uses the new certificate, and the other TLS listener keeps the old one.
    """
    node.authority.issue("first", (HOST,)).write(node.certificate_path)
    wait_for(lambda: shown(node) == "first")
    other = node.authority.issue("first", (HOST, "localhost"))
    path = other.write(tmp_path / "other.pem")
    with node.connect(node.context()) as before:
        _alter(node, **{"keystore.location": path})
        wait_for(lambda: _serial(node) == other.certificate.serial_number)
        assert ask(before)
    _alter(node, **{"keystore.location": None})
    wait_for(lambda: _serial(node) != other.certificate.serial_number)


def _serial(node: TlsNode) -> int:
    with node.connect(node.context()) as connection:
        der = connection.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("keystore.location", "/nowhere/at/all", "/nowhere/at/all"),
        ("keystore.type", "JKS", "keytool"),
        ("client.auth", "none", "This version cannot update"),
        ("key.password", "secret-text", ""),
    ],
)
def test_dynamic_values_are_judged(node: TlsNode, key: str, value: str, reason: str) -> None:
    """A dynamic value with an unusable store is refused. A password that no key needs is accepted."""
    before = _serial(node)
    if reason:
        with pytest.raises(KafkaError, match=reason) as refused:
            _alter(node, **{key: value})
        assert "secret-text" not in str(refused.value)
    else:
        _alter(node, **{key: value})
        _alter(node, **{key: None})
    assert _serial(node) == before


def test_another_name_is_refused(node: TlsNode, tmp_path: Path) -> None:
    """A certificate with another distinguished name is refused, as in Kafka, unless `ssl.allow.dn.changes` is true."""
    path = node.authority.issue("another", (HOST,)).write(tmp_path / "another.pem")
    with pytest.raises(KafkaError, match="distinguished name"):
        _alter(node, **{"keystore.location": path})


def test_secrets_are_not_described(node: TlsNode) -> None:
    """DescribeConfigs hides the secret values of a listener's keys."""
    _alter(node, **{"key.password": "secret-text"})
    with Client(f"{HOST}:{node.plaintext}") as client:
        found = client.admin.describe_configs([BROKER])
    assert "secret-text" not in repr(found)
    assert "secret-text" not in node.log
    _alter(node, **{"key.password": None})


def test_a_client_of_the_old_authority_is_refused(node: TlsNode) -> None:
    """The truststore file changes. A client of the old authority is then refused."""
    honest = node.authority.issue("honest")
    with node.connect(node.context(honest), node.mutual) as connection:
        assert ask(connection)
    (node.directory / "authority.pem").write_text(Authority().pem)

    def is_refused() -> bool:
        try:
            with node.connect(node.context(honest), node.mutual) as connection:
                return ask(connection) == b""
        except (ssl.SSLError, ConnectionError):
            return True

    wait_for(is_refused)
