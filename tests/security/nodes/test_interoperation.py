"""Unmodified clients log in over TLS by each mechanism and by certificate, at one node."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from testkit.kafka_server import java_arguments
from testkit.odradek_server import ODRADEK
from tests.security.clients import (
    LOGINS,
    Login,
    by_aiokafka,
    by_confluent_kafka,
    by_kafka_python,
    java_properties,
)
from tests.security.secured_node import SecuredNode

CLIENTS = {
    "confluent-kafka": by_confluent_kafka,
    "kafka-python": by_kafka_python,
    "aiokafka": by_aiokafka,
}


@pytest.mark.parametrize("way", LOGINS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_record_in_and_out(
    secured: SecuredNode, client: str, way: str, fresh_topic: Callable[[str], str]
) -> None:
    """Each client logs in by each way, on all its connections, and reads the record that it has written."""
    assert CLIENTS[client](secured, LOGINS[way], fresh_topic("interop")) == b"value"


@pytest.mark.parametrize("client", ["confluent-kafka", "aiokafka"])
def test_a_name_with_any_letters(
    secured: SecuredNode, client: str, fresh_topic: Callable[[str], str]
) -> None:
    """A user's name has letters beyond ASCII, a comma and an equal sign. Each client and the node treat it alike."""
    # kafka-python does not escape the comma, which therefore ends the name (RFC 5802, section 5.1).
    login = Login("SCRAM-SHA-512", "jürgen, é=è")
    assert CLIENTS[client](secured, login, fresh_topic("interop")) == b"value"


def _java(secured: SecuredNode, login: Login, directory: Path, topic: str) -> list[str]:
    """Create a topic by Kafka's tool. Return the topics that our command then lists."""
    path = directory / "client.properties"
    keys = java_properties(secured, login, directory)
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{directory}/token.jwt"
    bootstrap = secured.tls if login.mechanism is None else secured.sasl_tls
    tool = [
        *java_arguments(),
        allowed,
        "org.apache.kafka.tools.TopicCommand",
        "--bootstrap-server",
        bootstrap,
    ]
    options = ["--command-config", str(path)]
    # The controller does not see this login: CreateTopics is forwarded by the broker in an envelope.
    subprocess.run(
        [*tool, *options, "--create", "--topic", topic], check=True, capture_output=True, timeout=90
    )
    done = subprocess.run(
        [ODRADEK, "topic", "list", "--bootstrap-server", bootstrap, *options],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.split()


@pytest.mark.java
@pytest.mark.parametrize("way", ["OAUTHBEARER", "SCRAM-SHA-512", "certificate"])
def test_kafkas_own_tools_and_ours_by_one_file(
    secured: SecuredNode,
    kafka_jars: object,
    way: str,
    tmp_path: Path,
    fresh_topic: Callable[[str], str],
) -> None:
    """Kafka's tool and our command use the same file of client keys."""
    topic = fresh_topic("java")
    assert topic in _java(secured, LOGINS[way], tmp_path, topic)


@pytest.mark.java
@pytest.mark.attack
@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-SHA-256"])
def test_kafkas_own_tools_the_rest(
    secured: SecuredNode,
    kafka_jars: object,
    way: str,
    tmp_path: Path,
    fresh_topic: Callable[[str], str],
) -> None:
    """Kafka's tool and our command log in by the remaining mechanisms, with the same file."""
    topic = fresh_topic("java")
    assert topic in _java(secured, LOGINS[way], tmp_path, topic)
