"""Known clients pretend to be nodes, over TLS and with logins: they send forged envelopes and followers' fetches.

The user `mallory` may only READ the topic, `broker` has CLUSTER_ACTION, and `admin` may do everything. Each logs in by
PLAIN at brokers, and by a certificate at controllers.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trustme

from odradek.wire.api import ApiKey
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.alter_partition import AlterPartitionRequest
from odradek.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from odradek.wire.messages.create_acls import AclCreation, CreateAclsRequest
from odradek.wire.messages.describe_acls import DescribeAclsRequest
from odradek.wire.messages.envelope import EnvelopeRequest
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest
from odradek.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from odradek.wire.principal import encode_principal
from testkit.odradek_server import launch_odradek
from testkit.processes import combined_node_properties, free_ports
from testkit.raw_requests import RawClient, frame
from tests.cli.running import odradek_here
from tests.security.secured_node import PLAIN_MODULE

NODE, MALLORY, BROKER, ADMIN = "node", "mallory", "broker", "admin"
TOPIC = "ledger"
LOCAL = bytes([127, 0, 0, 1])
OLD_FETCH, NEW_FETCH = 12, 17
"""Fetch 12 has the replica's id as a field, Fetch 17 in a replica's state (KIP-903)."""


@attrs.frozen
class Place:
    """The listeners of the node, and the directory with certificates."""

    directory: Path
    clients: str
    controller: str

    def at_broker(self, user: str) -> RawClient:
        """Connect to the broker, and log in as this user."""
        client = self._encrypted(self.clients, None)
        assert client.request(SaslHandshakeRequest("PLAIN"), 1).error_code == 0
        token = f"\0{user}\0{user}-secret".encode()
        assert client.request(SaslAuthenticateRequest(token), 2).error_code == 0
        return client

    def at_controller(self, user: str) -> RawClient:
        """Open a connection to the controller with this user's certificate."""
        return self._encrypted(self.controller, user)

    def _encrypted(self, address: str, user: str | None) -> RawClient:
        context = ssl.create_default_context(cafile=self.directory / "authority.pem")
        if user is not None:
            context.load_cert_chain(self.directory / f"{user}.pem")
        client = RawClient(address)
        client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")
        return client

    def acl(self, *words: str) -> str:
        """Run an `odradek acl` command as the administrator."""
        done = odradek_here("acl", *words, "--command-config", str(self.directory / "admin.properties"))
        assert done.code == 0, done.err
        return done.out


def _properties(directory: Path, clients: int, controller: int, plaintext: int) -> dict[str, str]:
    # Clients of the plaintext listener have no rights. This listener only serves to wait for the start.
    listener = f"CLIENTS://127.0.0.1:{clients},PLAINTEXT://127.0.0.1:{plaintext}"
    users = " ".join(f'user_{user}="{user}-secret"' for user in (NODE, MALLORY, BROKER, ADMIN))
    return {
        **combined_node_properties(directory, plaintext, controller),
        "listeners": f"CONTROLLER://127.0.0.1:{controller},{listener}",
        "advertised.listeners": listener,
        "listener.security.protocol.map": "CLIENTS:SASL_SSL,CONTROLLER:SSL,PLAINTEXT:PLAINTEXT",
        "inter.broker.listener.name": "CLIENTS",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.clients.plain.sasl.jaas.config": f"{PLAIN_MODULE} required "
        f'username="{NODE}" password="{NODE}-secret" {users};',
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / f"{NODE}.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / "authority.pem"),
        "listener.name.controller.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{NODE};User:{ADMIN}",
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The node, with a topic that has one record."""
    directory = tmp_path_factory.mktemp("impostors")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "authority.pem")
    for user in (NODE, MALLORY, BROKER, ADMIN):
        issued = authority.issue_cert("127.0.0.1", common_name=user)
        issued.private_key_and_cert_chain_pem.write_to_path(directory / f"{user}.pem")
    clients, controller, plaintext = free_ports(3)
    made = Place(directory, f"127.0.0.1:{clients}", f"127.0.0.1:{controller}")
    keys = {
        "bootstrap.servers": made.clients,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{PLAIN_MODULE} required username="{ADMIN}" password="{ADMIN}-secret";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / "authority.pem"),
    }
    _write(directory / "admin.properties", keys)
    path = _write(directory / "server.properties", _properties(directory, clients, controller, plaintext))
    assert odradek_here("storage", "format", path).code == 0
    server = launch_odradek(path)
    try:
        by_admin = ("--command-config", directory / "admin.properties")
        assert odradek_here("topic", "create", TOPIC, *by_admin).code == 0
        assert odradek_here("produce", TOPIC, *by_admin, stdin=b"a record of the ledger\n").code == 0
        made.acl("add", "--user", MALLORY, "--operation", "read", "--topic", TOPIC)
        made.acl("add", "--user", BROKER, "--operation", "cluster-action", "--cluster")
        yield made
        assert server.is_running(), server.log_tail()
    finally:
        server.stop()


def _write(path: Path, keys: dict[str, str]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    return path


def _envelope(principal: str, address: bytes = LOCAL) -> EnvelopeRequest:
    """Make an envelope in the name of this principal, which contains a CreateAcls."""
    creation = AclCreation(2, "forged", 3, f"User:{MALLORY}", "*", 2, 3)
    inner = bytes(frame(CreateAclsRequest([creation]), 3)[4:])
    return EnvelopeRequest(inner, encode_principal(f"User:{principal}"), address)


def _forged(place: Place) -> bool:
    """True if the ACL of `_envelope` was made."""
    return "forged" in place.acl("list")


@pytest.mark.parametrize("user", [MALLORY, BROKER, ADMIN])
def test_a_broker_takes_no_envelope(place: Place, user: str) -> None:
    """A broker is sent an envelope.

    It closes the connection, even of a super user, as only controllers accept envelopes (KIP-590).
    """
    with place.at_broker(user) as client:
        client.send(frame(_envelope(ADMIN), 0))
        assert client.is_closed_by_node()
    assert not _forged(place)


def test_an_envelope_needs_cluster_action(place: Place) -> None:
    """A sender without CLUSTER_ACTION sends an envelope in an administrator's name. It is refused."""
    with place.at_controller(MALLORY) as client:
        for name in (ADMIN, NODE, MALLORY):
            answer = client.request(_envelope(name), 0)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert not answer.response_data
    assert not _forged(place)


def test_what_is_in_an_envelope_is_judged_by_the_name_inside(place: Place) -> None:
    """A sender with CLUSTER_ACTION sends an envelope.

    Its contents are checked with the rights of the principal inside, not of the sender.
    """
    with place.at_controller(BROKER) as client:
        refused = client.request(_envelope(MALLORY), 0)
        assert refused.error_code == 0
        assert b"Cluster authorization failed" in refused.response_data
        # The sender's own principal has no right to ALTER.
        assert b"Cluster authorization failed" in client.request(_envelope(BROKER), 0).response_data
        envelope = _envelope(ADMIN)
        nested = bytes(frame(envelope, 0)[4:])
        answer = client.request(EnvelopeRequest(nested, envelope.request_principal, LOCAL), 0)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        for broken in (b"", b"\0", b"\xff" * 40):
            answer = client.request(EnvelopeRequest(envelope.request_data, broken, LOCAL), 0)
            assert answer.error_code == ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE
        answer = client.request(
            EnvelopeRequest(envelope.request_data, envelope.request_principal, b"12345"), 0
        )
        assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert not _forged(place)


def _fetch(topic_id: bytes, version: int, replica: int) -> FetchRequest:
    partition = FetchPartition(0, 0, 0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(TOPIC, topic_id, [partition])]
    if version < 15:
        return FetchRequest(replica_id=replica, max_wait_ms=0, min_bytes=0, topics=topics)
    return FetchRequest(replica_state=ReplicaState(replica, -1), max_wait_ms=0, min_bytes=0, topics=topics)


@pytest.mark.parametrize("version", [OLD_FETCH, NEW_FETCH])
def test_who_fetches_as_a_follower_needs_cluster_action(place: Place, version: int) -> None:
    """A client with READ fetches as a follower.

    It is refused without CLUSTER_ACTION, even with an existing replica's id.
    """
    with place.at_broker(MALLORY) as client:
        (topic,) = client.request(MetadataRequest([MetadataRequestTopic(name=TOPIC)], False), 12).topics

        def told(replica: int) -> Any:
            (answer,) = client.request(_fetch(topic.topic_id, version, replica), version).responses
            return answer.partitions[0]

        assert b"a record of the ledger" in bytes(told(-1).records)
        for replica in (0, 1, 7, 2**31 - 1):
            refused = told(replica)
            assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert not refused.records
            assert refused.high_watermark == -1


def test_what_only_nodes_send_is_refused(place: Place) -> None:
    """A known client without CLUSTER_ACTION sends requests of nodes.

    A broker refuses them or closes the connection, a controller refuses (KIP-500).
    """
    with place.at_broker(MALLORY) as client:
        marker = WritableTxnMarker(1, 0, True, [WritableTxnMarkerTopic(TOPIC, [0])])
        (told,) = client.request(WriteTxnMarkersRequest([marker]), 1).markers
        assert told.topics[0].partitions[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    for request, version in ((BrokerHeartbeatRequest(1, -1), 1), (AlterPartitionRequest(1, -1), 3)):
        with place.at_broker(ADMIN) as client:
            client.send(frame(request, version))
            assert client.is_closed_by_node(), ApiKey(request.API_KEY).name
        with place.at_controller(MALLORY) as client:
            answer = client.request(request, version)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ApiKey(request.API_KEY).name
    with place.at_controller(MALLORY) as client:
        answer = client.request(DescribeAclsRequest(1, None, 1, None, None, 1, 1), 3)
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
