"""Our client and our commands log in by Kafka's client keys."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import trio

import odradek.trio
from odradek.client.core.client_keys import AdminSettings
from odradek.client.errors import AuthenticationFailed, ClientError
from odradek.client.shells.blocking import Client
from odradek.client.shells.consumer import Consumer
from odradek.client.shells.producer import Producer
from testkit.odradek_server import ODRADEK
from tests.security.secured_node import PLAIN_MODULE, SecuredNode

SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def _jaas(module: str, user: str, password: str) -> str:
    return f'{module} required username="{user}" password="{password}";'


def _keys(secured: SecuredNode, kind: str) -> dict[str, str]:
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": secured.authority}
    scram = {
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": _jaas(SCRAM_MODULE, "alice", "alice-secret"),
    }
    plain = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": _jaas(PLAIN_MODULE, "carol", "carol-secret")}
    return {
        "scram": {"bootstrap.servers": secured.sasl, "security.protocol": "SASL_PLAINTEXT", **scram},
        "plain keys": {
            "bootstrap.servers": secured.sasl,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "odradek.sasl.username": "bob",
            "odradek.sasl.password": "bob-secret",
        },
        "renewing": {"bootstrap.servers": secured.renewing, "security.protocol": "SASL_PLAINTEXT", **plain},
        "tls": {"bootstrap.servers": secured.tls, "security.protocol": "SSL", **trust},
        "certificate": {
            "bootstrap.servers": secured.tls,
            "security.protocol": "SSL",
            **trust,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": secured.client_pem,
        },
        "scram over tls": {
            "bootstrap.servers": secured.sasl_tls,
            "security.protocol": "SASL_SSL",
            **trust,
            **scram,
        },
    }[kind]


KINDS = ("scram", "renewing", "tls", "certificate", "scram over tls")


@pytest.mark.parametrize("kind", KINDS)
def test_records_in_and_out(secured: SecuredNode, kind: str, fresh_topic: Callable[[str], str]) -> None:
    """Megabytes of records are written and read through each kind of login."""
    keys, topic = _keys(secured, kind), fresh_topic("ours")
    values = [b"%05d" % number + bytes(2_000) for number in range(2_000)]
    with Producer(keys) as producer:
        for value in values:
            producer.send(topic, value)
        producer.flush()
    with Consumer({**keys, "auto.offset.reset": "earliest", "group.id": topic}) as consumer:
        consumer.subscribe([topic])
        got: list[bytes | None] = []
        while len(got) < len(values):
            got += (record.value for record in consumer.poll(5_000))
    assert got == values


@pytest.mark.parametrize("kind", [*KINDS, "plain keys"])
def test_the_async_client(secured: SecuredNode, kind: str, fresh_topic: Callable[[str], str]) -> None:
    """The async client logs in as the blocking one does."""

    async def talk() -> None:
        async with odradek.trio.open_producer(_keys(secured, kind)) as producer:
            future = await producer.send(fresh_topic("ours"), b"value")
            assert (await future.result()).offset == 0

    trio.run(talk)


def _client(keys: Mapping[str, str], **others: str) -> Client:
    settings = AdminSettings.from_properties({**keys, **others})
    return Client(
        others.get("bootstrap.servers", keys["bootstrap.servers"]),
        config=settings.client_config(fail_fast=True),
    )


def test_a_wrong_password_is_told_at_once_and_not_shown(secured: SecuredNode) -> None:
    """A wrong password fails at once, without retries. The error does not contain the password."""
    keys = _keys(secured, "scram")
    wrong = _jaas(SCRAM_MODULE, "alice", "a-wrong-one")
    with _client(keys, **{"sasl.jaas.config": wrong}) as client:
        with pytest.raises(AuthenticationFailed, match="invalid credentials") as caught:
            client.admin.describe_cluster()
        assert "a-wrong-one" not in str(caught.value)


def test_a_login_at_a_listener_without_logins_is_told(secured: SecuredNode) -> None:
    """A client logs in at a listener without logins.

    The error names the key to set, and not only ILLEGAL_SASL_STATE.
    """
    keys = _keys(secured, "scram")
    with (
        _client(keys, **{"bootstrap.servers": secured.plaintext}) as client,
        pytest.raises(AuthenticationFailed, match=r"accepts no logins: set security\.protocol"),
    ):
        client.admin.describe_cluster()


def test_a_server_of_another_authority_is_refused(secured: SecuredNode, tmp_path: Path) -> None:
    """The server's certificate is signed by an unknown authority. The connection ends before any request is sent."""
    import trustme

    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    keys = _keys(secured, "tls")
    with (
        _client(keys, **{"ssl.truststore.location": str(tmp_path / "other.pem")}) as client,
        pytest.raises(ClientError, match="certificate refused"),
    ):
        client.admin.describe_cluster()


def test_a_server_of_another_name_is_refused(
    secured: SecuredNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server's certificate must contain the host that the client connects to.

    An empty algorithm disables this check.
    """
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *args, **named: real("127.0.0.1", *args, **named))
    keys = _keys(secured, "tls")
    port = keys["bootstrap.servers"].rpartition(":")[2]
    moved = {"bootstrap.servers": f"kafka.example:{port}"}
    with _client(keys, **moved) as client, pytest.raises(ClientError, match=r"kafka\.example"):
        client.admin.describe_cluster()
    with (
        Producer({**keys, **moved, "max.block.ms": 5000}) as producer,
        pytest.raises(ClientError, match="certificate refused"),
    ):
        producer.send("t", b"x")
    assert "kafka.example" in caplog.text
    with _client(keys, **moved, **{"ssl.endpoint.identification.algorithm": ""}) as client:
        assert client.admin.describe_cluster().brokers


def test_commands_take_a_file_of_client_keys(secured: SecuredNode, tmp_path: Path) -> None:
    """Commands that list, write and read accept client keys by --command-config."""
    keys = _keys(secured, "scram over tls")
    path = tmp_path / "client.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    options = ["--bootstrap-server", keys["bootstrap.servers"], "--command-config", str(path)]
    shown = subprocess.run(
        [ODRADEK, "cluster", "status", "--json", *options], check=True, capture_output=True, text=True
    )
    assert json.loads(shown.stdout)["brokers"]
    topic = f"command-{tmp_path.name}"
    subprocess.run([ODRADEK, "produce", topic, *options], check=True, input=b"one\ntwo\n")
    read = subprocess.run(
        [ODRADEK, "consume", topic, "--from-beginning", "--max-messages", "2", *options],
        check=True,
        capture_output=True,
    )
    assert read.stdout.splitlines() == [b"one", b"two"]
