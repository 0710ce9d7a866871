"""Unmodified clients with `group.protocol=consumer` on three nodes, while members stall and nodes are killed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from jepsen_tests.systems import ApacheKafka
from testkit.kafka_server import KafkaUnavailable, ensure_jars
from tests.other_clients.consumer_protocol.programs import (
    CONSOLE,
    JAVA,
    LIBRDKAFKA,
    ODRADEK,
    VERIFIABLE,
    Kind,
)
from tests.other_clients.consumer_protocol.scenario import play, three_nodes

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv (util-linux)"),
]
ROUNDS = 3
"""How many rounds the long form has."""


def share(kinds: Sequence[Kind], directory: Path, rounds: int) -> None:
    """Let members of these kinds share a topic on new nodes."""
    with three_nodes(directory) as cluster:
        play(cluster, kinds, directory, rounds=rounds)


def test_clients_share_a_group(tmp_path: Path, whole_matrix: bool) -> None:
    """librdkafka and, with Java, Kafka's consumers read each acknowledged record, and committed offsets only rise."""
    try:
        ensure_jars()
    except KafkaUnavailable:
        kinds = [LIBRDKAFKA] * 3
    else:
        kinds = [LIBRDKAFKA, VERIFIABLE, CONSOLE]
    share(kinds, tmp_path, ROUNDS if whole_matrix else 1)


@pytest.mark.parametrize(
    "kinds",
    [[LIBRDKAFKA] * 3, [ODRADEK] * 3, [VERIFIABLE] * 3, [JAVA] * 3, [CONSOLE] * 3],
    ids=["librdkafka", "odradek", "verifiable-consumer", "java-with-a-pattern", "console-consumer"],
)
def test_clients_of_a_kind(kinds: list[Kind], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Members of one kind read each acknowledged record. Java's members even subscribe to a pattern that the
    coordinator matches."""
    if not request.config.getoption("--matrix"):
        pytest.skip("only in the long form: run make test-groups")
    if LIBRDKAFKA not in kinds and ODRADEK not in kinds:
        request.getfixturevalue("kafka_jars")
    if JAVA in kinds and shutil.which("javac") is None:
        pytest.skip("no Java compiler")
    share(kinds, tmp_path, ROUNDS)


def test_our_client_on_apache_kafka(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Our members and one of librdkafka read each acknowledged record of three nodes of Apache Kafka."""
    if not request.config.getoption("--matrix"):
        pytest.skip("only in the long form: run make test-groups")
    request.getfixturevalue("kafka_jars")
    with three_nodes(tmp_path, ApacheKafka()) as cluster:
        play(cluster, [ODRADEK, LIBRDKAFKA, ODRADEK], tmp_path, rounds=1)
