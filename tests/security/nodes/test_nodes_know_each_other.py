"""Nodes authenticate each other: every listener between them is secured, by certificate, password or token."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import attrs
import confluent_kafka
import confluent_kafka.admin
import pytest
import trustme

from odradek.cli.commands.storage import format_storage_of
from odradek.node.main import NEEDS_OPERATOR
from testkit.odradek_server import spawn_node
from testkit.processes import ServerProcess, free_ports, wait_until_serving
from tests.cli.running import odradek_here, odradek_in_nursery
from tests.security.logins.issuer import Issuer
from tests.security.secured_node import PLAIN_MODULE

OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
LIFETIME_MS = 4_000
_CREATED = ("CreateTopics", "User:ANONYMOUS", "rdkafka")


@attrs.frozen
class Way:
    """A protocol between nodes with its mechanism, and the numbers of nodes and controllers."""

    protocol: str
    mechanism: str = "PLAIN"
    nodes: int = 2
    controllers: int = 1
    lifetime_ms: int = 0


WAYS = {
    "certificates": Way("SSL", nodes=3, controllers=3),
    "passwords that are renewed": Way("SASL_SSL", lifetime_ms=LIFETIME_MS),
    "tokens": Way("SASL_PLAINTEXT", "OAUTHBEARER"),
}
FULL_WAYS = {
    "certificates of two": Way("SSL"),
    "passwords": Way("SASL_PLAINTEXT"),
    "passwords of three": Way("SASL_PLAINTEXT", nodes=3, controllers=3),
    "passwords over TLS of three": Way("SASL_SSL", nodes=3, controllers=3, lifetime_ms=LIFETIME_MS),
    "tokens of three that are renewed": Way(
        "SASL_SSL", "OAUTHBEARER", nodes=3, controllers=3, lifetime_ms=LIFETIME_MS
    ),
}


def _properties(directory: Path, node: int, way: Way, ports: list[int]) -> dict[str, str]:
    clients, brokers, controller = ports[3 * node : 3 * node + 3]
    mechanism = way.mechanism.lower()
    plain = f'{PLAIN_MODULE} required username="node" password="node-secret" user_node="node-secret";'
    jaas = plain if mechanism == "plain" else f"{OAUTH_MODULE} required;"
    listeners = [f"BROKERS://127.0.0.1:{brokers}", f"PLAINTEXT://127.0.0.1:{clients}"]
    is_controller = node < way.controllers
    own = [f"CONTROLLER://127.0.0.1:{controller}"] if is_controller else []
    voters = [f"{each + 1}@127.0.0.1:{ports[3 * each + 2]}" for each in range(way.controllers)]
    return {
        "process.roles": "broker,controller" if is_controller else "broker",
        "node.id": str(node + 1),
        "controller.quorum.voters": ",".join(voters),
        "listeners": ",".join([*own, *listeners]),
        "advertised.listeners": ",".join(listeners),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "BROKERS",
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,BROKERS:{way.protocol},CONTROLLER:{way.protocol}",
        "sasl.enabled.mechanisms": way.mechanism,
        "sasl.mechanism.inter.broker.protocol": way.mechanism,
        "sasl.mechanism.controller.protocol": way.mechanism,
        f"listener.name.brokers.{mechanism}.sasl.jaas.config": jaas,
        f"listener.name.controller.{mechanism}.sasl.jaas.config": jaas,
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{directory}/jwks.json",
        "sasl.oauthbearer.expected.audience": "kafka",
        "sasl.oauthbearer.expected.issuer": "https://issuer",
        "sasl.oauthbearer.token.endpoint.url": f"file://{directory}/token.jwt",
        "connections.max.reauth.ms": str(way.lifetime_ms),
        "ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / "node.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / "authority.pem"),
        "log.dirs": str(directory / f"data-{node}"),
        "offsets.topic.replication.factor": "2",
    }


def _launch(directory: Path, node: int, way: Way, ports: list[int]) -> ServerProcess:
    path = directory / f"node-{node}.properties"
    settings = _properties(directory, node, way, ports)
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    format_storage_of(str(path), cluster_id="H5nlA7uKR0-zDRxvMJS5iw", ignore_formatted=False)
    return spawn_node(
        f"node {node}",
        path,
        bootstrap=f"127.0.0.1:{ports[3 * node]}",
        log_path=directory / f"node-{node}.log",
    )


@contextmanager
def _cluster(directory: Path, way: Way, ports: list[int]) -> Iterator[list[ServerProcess]]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "authority.pem")
    authority.issue_cert("127.0.0.1", common_name="node").private_key_and_cert_chain_pem.write_to_path(
        directory / "node.pem"
    )
    issuer = Issuer()
    (directory / "jwks.json").write_bytes(issuer.document())
    (directory / "token.jwt").write_text(issuer.token(sub="node"))
    servers = [_launch(directory, node, way, ports) for node in range(way.nodes)]
    try:
        for server in servers:
            wait_until_serving(server, 60)
        yield servers
    finally:
        for server in servers:
            server.stop()


def _isr(bootstrap: str) -> list[list[int]]:
    shown = odradek_here("topic", "describe", "both", "--json", bootstrap=bootstrap).json()
    return [sorted(each["isr"]) for each in shown["topics"][0]["partitions"]]


def _hold(directory: Path, way: Way) -> None:
    """Check that nodes register, replicate and forward for longer than some logins last. A stranger gets no answer."""
    ports = free_ports(3 * way.nodes)
    with _cluster(directory, way, ports) as servers:
        # The last node forwards its client's requests to the active controller in an envelope.
        last = servers[-1].bootstrap
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": last})
        made = admin.create_topics([confluent_kafka.admin.NewTopic("both", 2, way.nodes)])
        made["both"].result(30)
        producer = confluent_kafka.Producer({"bootstrap.servers": last, "acks": "all"})
        until = time.monotonic() + 2.2 * way.lifetime_ms / 1000
        number = 0
        while number < 20 or time.monotonic() < until:
            producer.produce("both", b"%d" % number)
            assert producer.flush(30) == 0
            number += 1
            time.sleep(0.05 if way.lifetime_ms else 0)
        assert _isr(servers[0].bootstrap) == [[*range(1, way.nodes + 1)]] * 2
        logs = "".join((directory / f"node-{node}.log").read_text() for node in range(way.nodes))
        assert "expired" not in logs, "a node did not renew its login in time"
        for port in (ports[1], ports[2]):
            with socket.create_connection(("127.0.0.1", port), 5) as stranger:
                stranger.settimeout(20)
                # Metadata version 0 without a login: the node only closes the connection, perhaps after a TLS alert.
                stranger.sendall(bytes.fromhex("0000000e 0003 0000 00000001 ffff 00000000"))
                assert b"both" not in stranger.recv(4096)
        # The killed node may be the active controller. A crash may lose the audit lines of its last moment.
        _wait_until(lambda: _CREATED in _changes(directory, way), "no audit log has the new topic")
        servers[-1].kill()
        _wait_until(lambda: _is_found_dead(directory, way), "nobody has noticed the death")
    _check_audit(directory, way)


def _wait_until(holds: Callable[[], bool], complaint: str) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until, complaint
        time.sleep(0.05)


def _is_found_dead(directory: Path, way: Way) -> bool:
    """Return whether the active controller has noticed that the last node's process has ended. It needs no login."""
    logs = [(directory / f"node-{node}.log").read_text() for node in range(way.controllers)]
    return any(f"event=broker.found_dead node={node + 1}" in log for node, log in enumerate(logs))


def _changes(directory: Path, way: Way) -> set[tuple[str, str, str | None]]:
    """Return who asked for changes of metadata in the nodes' audit logs: API, principal, client id."""
    return {
        (line["api"], line["principal"].partition(",")[0], line["client_id"])
        for node in range(way.nodes)
        for line in _lines_of(directory, node)
        if line["event"] == "metadata.changed"
    }


def _check_audit(directory: Path, way: Way) -> None:
    """Check the audit logs: forwarded requests have their client, and nodes' own requests have the node (KIP-590)."""
    node = "User:CN=node" if way.protocol == "SSL" else "User:node"
    lines = [_lines_of(directory, number) for number in range(way.nodes)]
    asked = _changes(directory, way)
    assert _CREATED in asked
    assert asked & {("BrokerRegistration", node, f"node-{number + 1}") for number in range(way.nodes)}
    assert asked & {("BrokerRegistration", f"node {number + 1}", None) for number in range(way.controllers)}
    logins = {
        (line["listener"], line["principal"].partition(",")[0])
        for line in chain(*lines)
        if line["event"] == "login"
    }
    assert logins == {("CONTROLLER", node), ("BROKERS", node)}
    failed = [line["listener"] for line in lines[0] if line["event"] == "login.failed"]
    assert sorted(failed) == ["BROKERS", "CONTROLLER"]


def _lines_of(directory: Path, node: int) -> list[dict[str, Any]]:
    paths = (directory / f"data-{node}").glob("audit*.log")
    # The node may be writing the last line.
    whole = [path.read_text().rpartition("\n")[0] for path in paths]
    return [json.loads(line) for text in whole for line in text.splitlines()]


@pytest.mark.parametrize("way", WAYS)
def test_quorum_replication_and_forwarding(tmp_path: Path, way: str) -> None:
    """Brokers register, replicate and forward over secured listeners. A stranger gets no answer."""
    _hold(tmp_path, WAYS[way])


@pytest.mark.attack
@pytest.mark.parametrize("way", FULL_WAYS)
def test_quorum_replication_and_forwarding_in_full(tmp_path: Path, way: str) -> None:
    """Brokers register, replicate and forward by the remaining protocols and mechanisms. A stranger gets no answer."""
    _hold(tmp_path, FULL_WAYS[way])


def test_controllers_take_no_scram(tmp_path: Path) -> None:
    """Controllers cannot accept SCRAM, since its users are in the metadata log. Controllers need each other to read
    this log.

    The start is refused, and the error says what to do.
    """
    way = Way("SASL_PLAINTEXT", "SCRAM-SHA-256")
    path = tmp_path / "node.properties"
    settings = _properties(tmp_path, 0, way, [9092, 9094, 9093])
    settings |= {"listener.name.controller.sasl.enabled.mechanisms": "SCRAM-SHA-256"}
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    done = odradek_in_nursery("server", path)
    assert done.code == NEEDS_OPERATOR, done.err
    assert "let CONTROLLER accept PLAIN, or certificates (SSL)" in done.err
    assert "Traceback" not in done.err
