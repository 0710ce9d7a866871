"""A plaintext cluster of three nodes is secured under load, one listener after another (docs/security.md)."""

from __future__ import annotations

import base64
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import confluent_kafka
import confluent_kafka.admin as admins
import pytest
import trustme

from testkit.odradek_server import ODRADEK
from testkit.processes import ServerProcess, free_ports, spawn
from tests.cli.running import odradek

NODES = (1, 2, 3)
CLUSTER_ID = "H5nlA7uKR0-zDRxvMJS5iw"
NODE_NAME = "node"
MECHANISM = "SCRAM-SHA-512"
TOPIC = "moved"
PLAINTEXT, SECURED, BROKERS, CONTROLLER, CONTROLLER_SSL = range(5)
"""Indexes into a node's ports, in the order of its listeners."""
WAIT_SECONDS = 120


@attrs.define(eq=False)
class Cluster:
    """Three nodes, whose configuration files are rewritten at each stage."""

    directory: Path
    ports: dict[int, list[int]]
    servers: dict[int, ServerProcess] = attrs.Factory(dict)

    def addresses(self, listener: int) -> str:
        return ",".join(f"127.0.0.1:{self.ports[node][listener]}" for node in NODES)

    def properties(self, node: int, stage: int) -> dict[str, str]:
        """Return the configuration of a node at a stage.

        The stages are: plaintext only, more listeners, nodes use the new listeners, old listeners removed.
        """
        ports = self.ports[node]
        clients = {"PLAINTEXT": ports[PLAINTEXT]} if stage < 3 else {}
        controllers = {"CONTROLLER": ports[CONTROLLER]} if stage < 3 else {}
        if stage >= 1:
            clients |= {"SASL_SSL": ports[SECURED], "BROKERS": ports[BROKERS]}
            secured = {"CONTROLLER_SSL": ports[CONTROLLER_SSL]}
            # A node reaches the others by the first of these listeners.
            controllers = {**controllers, **secured} if stage == 1 else {**secured, **controllers}
        by_name = {**controllers, **clients}
        settings = {
            "process.roles": "broker,controller",
            "node.id": str(node),
            "controller.quorum.bootstrap.servers": self.addresses(
                CONTROLLER if stage < 2 else CONTROLLER_SSL
            ),
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in by_name.items()),
            "controller.listener.names": ",".join(controllers),
            "inter.broker.listener.name": "PLAINTEXT" if stage < 2 else "BROKERS",
            "log.dirs": str(self.directory / f"data-{node}"),
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "offsets.topic.replication.factor": "3",
            "offsets.topic.num.partitions": "2",
            "controller.quorum.election.timeout.ms": "500",
        }
        if stage >= 1:
            settings |= {
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL,"
                "BROKERS:SSL,CONTROLLER_SSL:SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.directory / "node.pem"),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.directory / "authority.pem"),
                "listener.name.brokers.ssl.client.auth": "required",
                "listener.name.controller_ssl.ssl.client.auth": "required",
                # The subject of a test certificate has more attributes than the common name.
                "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/",
                "sasl.enabled.mechanisms": MECHANISM,
                "odradek.scram.secret": "a secret of all brokers",
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                # While plaintext listeners exist, their clients (User:ANONYMOUS) may do everything.
                "super.users": f"User:admin;User:{NODE_NAME}" + (";User:ANONYMOUS" if stage < 3 else ""),
            }
        return settings

    def write(self, node: int, stage: int) -> Path:
        path = self.directory / f"node-{node}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.properties(node, stage).items()))
        return path

    def start(self, node: int, stage: int) -> None:
        self.servers[node] = spawn(
            f"node {node}",
            [ODRADEK, "server", self.write(node, stage)],
            bootstrap=f"127.0.0.1:{self.ports[node][PLAINTEXT]}",
            log_path=self.directory / f"node-{node}-{stage}.log",
        )

    def roll(self, stage: int, admin: admins.AdminClient) -> None:
        """Restart the nodes one after another at a new stage. Each waits until all replicas are in sync."""
        for node in NODES:
            self.servers[node].stop()
            self.start(node, stage)
            wait_until(lambda: is_whole(admin), lambda: self.logs(stage))

    def logs(self, stage: int) -> str:
        parts = [self.directory / f"node-{node}-{stage}.log" for node in NODES]
        return "\n\n".join(part.read_text()[-3000:] for part in parts if part.exists())


def wait_until(holds: Callable[[], bool], told: Callable[[], str]) -> None:
    """Wait until `holds` is true. On a timeout show the ends of the nodes' logs."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, told()
        time.sleep(0.1)


def is_whole(admin: admins.AdminClient) -> bool:
    """True if all brokers are alive, and each partition has a leader and all replicas in sync."""
    try:
        known = admin.list_topics(timeout=5)
    except confluent_kafka.KafkaException:
        return False
    partitions = [each for topic in known.topics.values() for each in topic.partitions.values()]
    return len(known.brokers) == len(NODES) and all(
        each.leader >= 0 and len(each.isrs) == len(each.replicas) for each in partitions
    )


@attrs.define(eq=False)
class Load:
    """Producers, one after another, for the listener that clients use at each stage.

    Each value is acknowledged once.
    """

    acknowledged: list[bytes] = attrs.Factory(list)
    errors: list[str] = attrs.Factory(list)
    _serial: int = 0

    @contextmanager
    def by(self, config: dict[str, Any]) -> Iterator[None]:
        """Produce with this configuration until the block ends."""
        producer = confluent_kafka.Producer(
            {**config, "acks": "all", "enable.idempotence": True, "linger.ms": 5}
        )
        over = threading.Event()

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                self.acknowledged.append(message.value())
            else:
                self.errors.append(str(error))

        def run() -> None:
            while not over.wait(0.02):
                self._serial += 1
                producer.produce(TOPIC, b"%d" % self._serial, on_delivery=delivered)
                producer.poll(0)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            assert producer.flush(60) == 0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three formatted nodes, which run with plaintext listeners only."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    node = authority.issue_cert("127.0.0.1", common_name="node")
    node.private_key_and_cert_chain_pem.write_to_path(tmp_path / "node.pem")
    ports = free_ports(5 * len(NODES))
    made = Cluster(tmp_path, {node: ports[5 * at : 5 * at + 5] for at, node in enumerate(NODES)})
    ids = {
        node: base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=").replace("-", "A") for node in NODES
    }
    voters = ",".join(f"{node}@127.0.0.1:{made.ports[node][CONTROLLER]}:{ids[node]}" for node in NODES)
    try:
        for node in NODES:
            words = ["storage", "format", made.write(node, 0), "--cluster-id", CLUSTER_ID]
            subprocess.run(
                [ODRADEK, *words, "--initial-controllers", voters], check=True, stdout=subprocess.DEVNULL
            )
            made.start(node, 0)
        yield made
    finally:
        for server in made.servers.values():
            server.stop()


def test_listener_by_listener_under_load(cluster: Cluster) -> None:
    """A cluster is secured under load. Each acknowledged record is there once, and at the end strangers are refused."""
    plain = {"bootstrap.servers": cluster.addresses(PLAINTEXT)}
    secured = {
        "bootstrap.servers": cluster.addresses(SECURED),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM,
        "ssl.ca.location": str(cluster.directory / "authority.pem"),
    }
    administrator = {**secured, "sasl.username": "admin", "sasl.password": "admin-secret"}
    writer = {**secured, "sasl.username": "writer", "sasl.password": "writer-secret"}
    admin = admins.AdminClient(plain)
    wait_until(lambda: is_whole(admin), lambda: cluster.logs(0))
    admin.create_topics([admins.NewTopic(TOPIC, 4, 3)])[TOPIC].result(30)
    load = Load()
    with load.by(plain):
        cluster.roll(1, admin)
        scram = admins.ScramCredentialInfo(admins.ScramMechanism.SCRAM_SHA_512, 4096)
        wanted = [
            admins.UserScramCredentialUpsertion(user, scram, f"{user}-secret".encode())
            for user in ("admin", "writer")
        ]
        for made in admin.alter_user_scram_credentials(wanted).values():
            made.result(30)
    by_admin = admins.AdminClient(administrator)
    wait_until(lambda: is_whole(by_admin), lambda: cluster.logs(1))
    keys = cluster.directory / "admin.properties"
    keys.write_text(
        f"bootstrap.servers={cluster.addresses(SECURED)}\nsecurity.protocol=SASL_SSL\nsasl.mechanism={MECHANISM}\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="admin" password="admin-secret";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={cluster.directory / 'authority.pem'}\n"
    )
    given = odradek(
        *("acl", "add", "--user", "writer", "--operation", "write", "--topic", TOPIC),
        *("--command-config", str(keys)),
    )
    assert given.code == 0, given.err
    with load.by(writer):
        cluster.roll(2, by_admin)
        cluster.roll(3, by_admin)
    assert not load.errors
    assert load.acknowledged
    _must_be_there_once(load, administrator)
    _must_be_shut(cluster)


def _must_be_there_once(load: Load, config: dict[str, Any]) -> None:
    consumer = confluent_kafka.Consumer(
        {**config, "group.id": "auditor", "auto.offset.reset": "earliest", "enable.partition.eof": True}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, index, 0) for index in range(4)])
        found: list[bytes] = []
        ended: set[int] = set()
        while len(ended) < 4:
            message = consumer.poll(30)
            assert message is not None, f"no message in 30 s, and only partitions {ended} have ended"
            if message.error() is None:
                found.append(message.value())
            else:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                ended.add(message.partition())
    finally:
        consumer.close()
    assert sorted(found) == sorted(load.acknowledged)


def _must_be_shut(cluster: Cluster) -> None:
    """Check that nothing listens in plaintext, and that a client needs a certificate or a password."""
    for node in NODES:
        stranger = {"bootstrap.servers": f"127.0.0.1:{cluster.ports[node][PLAINTEXT]}"}
        with pytest.raises(confluent_kafka.KafkaException):
            admins.AdminClient(stranger).list_topics(timeout=1)
    text = (cluster.directory / "node-1.properties").read_text()
    assert ":PLAINTEXT://" not in text
    assert "ANONYMOUS" not in text
