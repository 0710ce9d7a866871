"""The principal of a certificate: its name as Java prints it, mapped by Kafka's rules."""

from __future__ import annotations

import json
import random
import socket
import ssl
import struct
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from odradek.security.distinguished_names import MalformedName, distinguished_name, subject_of
from odradek.security.principals import MalformedRule, PrincipalRules
from testkit.kafka_server import start_kafka
from testkit.processes import combined_node_properties, free_ports
from tests.security.certificates import Authority
from tests.security.tls.java_names.record import NAMES_PATH, RULES_PATH, asked_names, asked_rules
from tests.security.tls.java_names.subjects import SUBJECTS
from tests.security.tls.tls_node import HOST, TIMEOUT_SECONDS

NAMES = json.loads(NAMES_PATH.read_text())
RULES = json.loads(RULES_PATH.read_text())


@pytest.mark.parametrize("key", NAMES)
def test_names_are_printed_as_by_java(key: str) -> None:
    """A certificate's subject is printed as by Java's `X500Principal.getName()`."""
    der = bytes.fromhex(NAMES[key]["der"])
    assert distinguished_name(der) == NAMES[key]["name"]
    certificate = Authority().issue(SUBJECTS[key]).certificate.public_bytes(Encoding.DER)
    assert distinguished_name(subject_of(certificate)) == NAMES[key]["name"]


@pytest.mark.parametrize(("rules", "name", "mapped"), RULES)
def test_rules_map_as_in_kafka(rules: str, name: str, mapped: str | None) -> None:
    """Rules map names as Kafka's `SslPrincipalMapper` does.

    Rules that Kafka refuses are refused, or map to no principal.
    """
    try:
        found = PrincipalRules.parse(rules).principal(name)
    except MalformedRule:
        found = None
    assert found == (None if mapped is None else f"User:{mapped}")


@pytest.mark.java
@pytest.mark.long
@pytest.mark.attack
def test_the_recorded_names_are_javas(kafka_jars: Path) -> None:
    """The recorded names and rules are those that Java and Kafka give today."""
    assert asked_names() == NAMES
    assert asked_rules() == RULES


def test_bytes_that_are_no_name_are_refused() -> None:
    """Cut or changed DER raises `MalformedName` or gives another name, and no other exception."""
    source = random.Random(5)
    certificate = Authority().issue(SUBJECTS["many attributes"]).certificate.public_bytes(Encoding.DER)
    for _ in range(2_000):
        data = bytearray(certificate)
        del data[source.randrange(len(data)) :]
        for _ in range(source.randrange(4)):
            if data:
                data[source.randrange(len(data))] = source.randrange(256)
        try:
            distinguished_name(subject_of(bytes(data)))
        except MalformedName:
            continue


_RULES = "RULE:^CN=(.*?),OU=.*$/$1/L,DEFAULT"


def _owner_of_token(context: ssl.SSLContext, port: int) -> str:
    """Create a delegation token in Kafka (CreateDelegationToken 2), and return its owner, which is the connection's
    principal."""
    body = struct.pack(">hhih", 38, 2, 1, -1) + b"\0\x01" + struct.pack(">q", -1) + b"\0"
    with (
        socket.create_connection((HOST, port), TIMEOUT_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as connection,
    ):
        connection.sendall(struct.pack(">i", len(body)) + body)
        stream = connection.makefile("rb")
        answer = stream.read(int.from_bytes(stream.read(4)))
    error, kind_bytes = struct.unpack_from(">hB", answer, 5)
    assert not error, f"CreateDelegationToken failed with error {error}"
    kind, rest = answer[8 : 7 + kind_bytes], answer[7 + kind_bytes :]
    size, shift, at = 0, 0, 0
    while True:
        size |= (rest[at] & 0x7F) << shift
        shift += 7
        at += 1
        if rest[at - 1] < 0x80:
            break
    return f"{kind.decode()}:{rest[at : at + size - 1].decode()}"


@pytest.mark.java
@pytest.mark.long
@pytest.mark.attack
def test_a_running_kafka_sees_the_same_principals(kafka_jars: Path, tmp_path: Path) -> None:
    """A running Kafka maps certificates with odd names by `ssl.principal.mapping.rules` to the same principals."""
    authority = Authority()
    trusted = authority.write(tmp_path / "authority.pem")
    own = authority.issue("kafka", (HOST,), with_rsa=True).write(tmp_path / "kafka.pem")
    port, controller, mutual = free_ports(3)
    listeners = f"MUTUAL://{HOST}:{mutual},PLAINTEXT://{HOST}:{port}"
    settings = {
        **combined_node_properties(tmp_path, port, controller),
        "listeners": f"CONTROLLER://{HOST}:{controller},{listeners}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "MUTUAL:SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": own,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": trusted,
        "ssl.principal.mapping.rules": _RULES,
        "delegation.token.secret.key": "a secret of this test",
    }
    rules = PrincipalRules.parse(_RULES)
    kafka = start_kafka(tmp_path / "kafka", port=port, settings=settings)
    try:
        for key in ("plain", "escapes", "unicode", "email", "three in one part", "long, of one's own", "nul"):
            client = authority.issue(SUBJECTS[key])
            context = ssl.create_default_context(cafile=trusted)
            context.load_cert_chain(client.write(tmp_path / "client.pem"))
            der = client.certificate.public_bytes(Encoding.DER)
            assert _owner_of_token(context, mutual) == rules.principal(distinguished_name(subject_of(der))), (
                key
            )
    finally:
        kafka.kill()
