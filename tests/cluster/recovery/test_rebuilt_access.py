"""A cluster whose brokers and clients log in by SCRAM, with rights, loses every metadata disk: `metadata rebuild --access`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from odradek import Admin, Producer
from odradek.client.admin.admin_topics import NewTopic
from tests.cli.running import Outcome, odradek, odradek_here
from tests.cluster.recovery.stopped_cluster import Cluster
from tests.cluster.test_real_nodes import until

pytestmark = pytest.mark.xdist_group("cluster")

MECHANISM = "SCRAM-SHA-512"
PASSWORDS = {"node": "planted-node", "alice": 'planted-alice, "x"', "bob": "planted-bob"}
SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": MECHANISM,
    "sasl.mechanism.inter.broker.protocol": MECHANISM,
    "listener.name.plaintext.scram-sha-512.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="node" password="{PASSWORDS["node"]}";'
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:node;User:ANONYMOUS",
    "odradek.scram.secret": "a secret of this test, the same on all nodes",
}
RIGHTS = [
    {"user": "alice", "operation": "all", "topic": "t"},
    {"user": "alice", "operation": "read", "group": "g", "prefixed": True},
    {"user": "bob", "operation": "describe", "topic": "another"},
    {"user": "carol", "operation": "all", "topic": "t", "state": "absent"},
]
QUOTAS = [{"user": "bob", "produce_rate": "10M"}]


def login(cluster: Cluster, user: str, password: str | None = None) -> dict[str, str]:
    """Make the client keys of a user."""
    return {
        "bootstrap.servers": cluster.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": MECHANISM,
        "odradek.sasl.username": user,
        "odradek.sasl.password": PASSWORDS[user] if password is None else password,
    }


def write_to(cluster: Cluster, user: str, values: range) -> None:
    with Producer({**login(cluster, user), "acks": "all"}) as producer:
        sent = [producer.send("t", value=str(value).encode()) for value in values]
        for each in sent:
            each.result(30.0)


def read(cluster: Cluster, user: str, password: str | None = None) -> Outcome:
    """Read topic t by the command, as this user."""
    path = cluster.directory / "client.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in login(cluster, user, password).items()))
    path.chmod(0o600)
    return odradek("consume", "t", "--command-config", path, "--timeout", "20")


def in_sync(cluster: Cluster) -> bool | None:
    with Admin(login(cluster, "node")) as admin:
        (described,) = admin.describe_topics(["t"])
        return all(len(each.isr) == 3 for each in described.partitions.values()) or None


def access_file(directory: Path, document: Mapping[str, Any]) -> Path:
    path = directory / "access.json"
    path.write_text(json.dumps(document))
    path.chmod(0o600)
    return path


def test_users_and_rights_come_back(tmp_path: Path) -> None:
    """Brokers log in to each other again. A user with rights reads all records. Others are refused, and so is a wrong password."""
    users = [f"{MECHANISM}=[name={user},password={password}]" for user, password in PASSWORDS.items()]
    cluster = Cluster.make(tmp_path, settings=SETTINGS, first_users=users)
    with cluster.ended():
        cluster.start(1, 2, 3)
        with Admin(login(cluster, "node")) as admin:
            (created,) = admin.create_topics([NewTopic("t", 2, 3)])
            assert created.error is None, created.error
        until("all in sync", lambda: in_sync(cluster))
        write_to(cluster, "node", range(50))
        cluster.stop(1, 2, 3)
        cluster.destroy_metadata(1, 2, 3)

        words = ("metadata", "rebuild", *cluster.configs)
        without = odradek_here(*words)
        assert "every login by SCRAM is refused, of clients and of brokers" in without.out
        assert "nobody has any rights" in without.out

        (tmp_path / "bob.password").write_text(f"{PASSWORDS['bob']}\n")
        (tmp_path / "bob.password").chmod(0o600)
        access = access_file(
            tmp_path,
            {
                "users": [
                    {"name": "node", "password": PASSWORDS["node"]},
                    {"name": "alice", "password": PASSWORDS["alice"], "state": "present"},
                    {"name": "bob", "password_file": str(tmp_path / "bob.password")},
                    {"name": "carol", "state": "absent"},
                ],
                "acls": RIGHTS,
                "quotas": QUOTAS,
            },
        )
        planned = odradek_here(*words, "--access", access)
        assert planned.code == 0, planned.err
        for shown in (
            "alice",
            "bob",
            "node",
            "ALL on TOPIC 't'",
            "READ on prefixed GROUP 'g'",
            "user bob: producer_byte_rate",
        ):
            assert shown in planned.out
        assert "carol" not in planned.out
        assert "--access" not in planned.out
        assert "planted" not in planned.out + planned.err
        assert not cluster.metadata(1).exists()

        done = odradek_here(*words, "--access", "-", "--execute", "--json", stdin=access.read_bytes())
        assert done.json()["done"] == [1, 2, 3]
        assert done.json()["review"]["users"] == ["alice", "bob", "node"]
        kept = [
            path for path in tmp_path.rglob("*") if path.is_file() and b"planted-alice" in path.read_bytes()
        ]
        assert kept == [access], "no password is in the plan or in the new log"

        cluster.start(1, 2, 3)
        until("all in sync", lambda: in_sync(cluster))
        values = read(cluster, "alice")
        assert sorted(map(int, values.out.split())) == list(range(50)), values.err
        write_to(cluster, "alice", range(50, 100))
        assert sorted(map(int, read(cluster, "alice").out.split())) == list(range(100))
        refused = read(cluster, "bob")
        assert refused.code == 1
        assert "TOPIC_AUTHORIZATION_FAILED" in refused.err
        wrong = read(cluster, "alice", "planted-wrong")
        assert wrong.code == 1
        assert "invalid credentials" in wrong.err
        assert wrong.out == refused.out == ""
        with Admin(login(cluster, "node")) as admin:
            assert admin.describe_client_quotas() == {
                (("user", "bob"),): {"producer_byte_rate": 10 * 1024 * 1024}
            }


def test_an_even_number_of_voters_is_said(tmp_path: Path) -> None:
    """Four controllers become four voters, which can lose no more than three. Of three nothing is said."""
    cluster = Cluster.make(tmp_path, 4, voters=4)
    cluster.destroy_metadata(*cluster.ids)
    even = odradek_here("metadata", "rebuild", *cluster.configs)
    assert even.code == 0, even.err
    assert "an even number of voters: 4 can lose 1, as many as 3 can" in even.out
    assert "`odradek quorum remove 4`" in even.out
    odd = odradek_here("metadata", "rebuild", *cluster.configs[:3])
    assert odd.code == 0, odd.err
    assert "even number" not in odd.out
