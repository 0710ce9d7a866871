"""Nodes that show each other who they are: two nodes, every listener between them secured."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest
import trustme

from bench.odradek_server import ODRADEK
from bench.processes import ServerProcess, free_ports, spawn, wait_until_serving
from tests.security.secured_node import PLAIN_MODULE

PROTOCOLS = ("SSL", "SASL_SSL", "SASL_PLAINTEXT")


def _properties(directory: Path, node: int, protocol: str, ports: list[int]) -> dict[str, str]:
    clients, brokers, controller = ports[3 * node : 3 * node + 3]
    jaas = f'{PLAIN_MODULE} required username="node" password="node-secret" user_node="node-secret";'
    roles = "broker,controller" if node == 0 else "broker"
    listeners = [f"BROKERS://127.0.0.1:{brokers}", f"PLAINTEXT://127.0.0.1:{clients}"]
    own = [f"CONTROLLER://127.0.0.1:{controller}"] if node == 0 else []
    return {
        "process.roles": roles,
        "node.id": str(node + 1),
        "controller.quorum.voters": f"1@127.0.0.1:{ports[2]}",
        "listeners": ",".join([*own, *listeners]),
        "advertised.listeners": ",".join(listeners),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "BROKERS",
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,BROKERS:{protocol},CONTROLLER:{protocol}",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.brokers.plain.sasl.jaas.config": jaas,
        "listener.name.controller.plain.sasl.jaas.config": jaas,
        "ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / "node.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / "authority.pem"),
        "log.dirs": str(directory / f"data-{node}"),
        "offsets.topic.replication.factor": "2",
    }


def _start(directory: Path, node: int, protocol: str, ports: list[int]) -> ServerProcess:
    path = directory / f"node-{node}.properties"
    settings = _properties(directory, node, protocol, ports)
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    words = ["storage", "format", path, "--cluster-id", "H5nlA7uKR0-zDRxvMJS5iw"]
    subprocess.run([ODRADEK, *words], check=True, stdout=subprocess.DEVNULL)
    server = spawn(
        f"node {node}",
        [ODRADEK, "server", path],
        bootstrap=f"127.0.0.1:{ports[3 * node]}",
        log_path=directory / f"node-{node}.log",
    )
    wait_until_serving(server, 60)
    return server


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_quorum_replication_and_forwarding(tmp_path: Path, protocol: str) -> None:
    """A broker registers, replicates and forwards over secured listeners, and a stranger learns nothing there."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    authority.issue_cert("127.0.0.1", common_name="node").private_key_and_cert_chain_pem.write_to_path(
        tmp_path / "node.pem"
    )
    ports = free_ports(6)
    servers: list[ServerProcess] = []
    try:
        for node in (0, 1):
            servers.append(_start(tmp_path, node, protocol, ports))
        # The second node is no controller: what it is asked goes on in an envelope.
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers[1].bootstrap})
        made = admin.create_topics([confluent_kafka.admin.NewTopic("both", 2, 2)])
        made["both"].result(30)
        producer = confluent_kafka.Producer({"bootstrap.servers": servers[1].bootstrap, "acks": "all"})
        for number in range(20):
            producer.produce("both", b"%d" % number)
        assert producer.flush(30) == 0
        shown = subprocess.run(
            [ODRADEK, "topic", "describe", "both", "--json", "--bootstrap-server", servers[0].bootstrap],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for partition in json.loads(shown)["topics"][0]["partitions"]:
            assert sorted(partition["isr"]) == [1, 2]
        for port in (ports[1], ports[2]):
            with socket.create_connection(("127.0.0.1", port), 5) as stranger:
                stranger.settimeout(20)
                # Metadata version 0, without a login: no answer but the end (or an alert before it).
                stranger.sendall(bytes.fromhex("0000000e 0003 0000 00000001 ffff 00000000"))
                assert b"both" not in stranger.recv(4096)
    finally:
        for server in servers:
            server.stop()
    _check_audit(tmp_path, "User:CN=node" if protocol == "SSL" else "User:node")


def _check_audit(directory: Path, node: str) -> None:
    """The controller's audit log has the client of an Envelope, and the nodes where they ask for themselves (KIP-590)."""
    lines = [json.loads(line) for line in (directory / "data-0" / "audit.log").read_text().splitlines()]
    asked = {
        (line["api"], line["principal"].partition(",")[0], line["client_id"])
        for line in lines
        if line["event"] == "metadata.changed"
    }
    assert ("CreateTopics", "User:ANONYMOUS", "rdkafka") in asked
    assert ("BrokerRegistration", node, "node-2") in asked
    assert ("BrokerRegistration", "node 1", None) in asked
    logins = {
        (line["listener"], line["principal"].partition(",")[0]) for line in lines if line["event"] == "login"
    }
    assert logins == {("CONTROLLER", node), ("BROKERS", node)}
    failed = [line["listener"] for line in lines if line["event"] == "login.failed"]
    assert sorted(failed) == ["BROKERS", "CONTROLLER"]
