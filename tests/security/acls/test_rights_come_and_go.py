"""Rights on a running node are given, used and taken: by requests, by the command line, and by Kafka's tool."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_acls import AclCreation, CreateAclsRequest
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from testkit.odradek_server import start_odradek
from testkit.raw_requests import RawClient, frame
from tests.cli.running import odradek_here
from tests.conformance.acls.asking import SETTINGS, _Client
from tests.conformance.asking.batches import batch
from tests.conformance.servers import SETTINGS as BASE
from tests.kafka_tools import run_tool_here

ANONYMOUS, STRANGER = "User:ANONYMOUS", "127.8.8.8"
READ, WRITE = 3, 4


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node on which clients from 127.0.0.1 may do everything, and other clients nothing."""
    server = start_odradek(tmp_path_factory.mktemp("rights"), settings={**BASE, **SETTINGS})
    try:
        with RawClient(server.bootstrap) as admin:
            everything = [(kind, "*") for kind in (2, 3, 5, 6, 7)] + [(4, "kafka-cluster")]
            rules = [AclCreation(kind, name, 3, ANONYMOUS, "127.0.0.1", 2, 3) for kind, name in everything]
            assert not any(each.error_code for each in admin.request(CreateAclsRequest(rules), 3).results)
            topics = [CreatableTopic(name, 1, 1, [], []) for name in ("given", "watched")]
            created = admin.request(CreateTopicsRequest(topics, 10_000, False), 7).topics
            assert not any(each.error_code for each in created)
        yield server.bootstrap
        assert server.is_running(), server.log_tail()
    finally:
        server.kill()


def give(admin: RawClient, topic: str, operation: int) -> None:
    """Give the stranger this right."""
    rule = AclCreation(2, topic, 3, ANONYMOUS, STRANGER, operation, 3)
    assert not admin.request(CreateAclsRequest([rule]), 3).results[0].error_code


def take(admin: RawClient, topic: str, operation: int) -> int:
    """Take this right from the stranger. Return the number of removed ACLs."""
    rule = DeleteAclsFilter(2, topic, 3, ANONYMOUS, STRANGER, operation, 1)
    return len(admin.request(DeleteAclsRequest([rule]), 3).filter_results[0].matching_acls)


def test_a_connection_loses_its_right_with_the_next_request(bootstrap: str) -> None:
    """A right is taken. The next request of an open connection is refused."""
    with RawClient(bootstrap) as admin, _Client(bootstrap, STRANGER) as stranger:
        denied = stranger.produce("given", batch(1)).error_code
        assert denied == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        give(admin, "given", WRITE)
        assert [stranger.produce("given", batch(1)).error_code for _ in range(3)] == [0, 0, 0]
        assert take(admin, "given", WRITE) == 1
        assert stranger.produce("given", batch(1)).error_code == denied
        assert take(admin, "given", WRITE) == 0


def test_a_parked_fetch_loses_its_right(bootstrap: str) -> None:
    """A right to read is taken while a fetch waits for records. The fetch returns none."""
    partition = FetchPartition(0, -1, 0, -1, -1, 1_000)
    topics = [FetchTopic("watched", bytes(16), [partition])]
    fetch = FetchRequest(None, -1, ReplicaState(-1, -1), 60_000, 1, 1_000, 0, 0, -1, topics, [], "")
    with RawClient(bootstrap) as admin, _Client(bootstrap, STRANGER) as stranger:
        give(admin, "watched", READ)
        stranger.send(frame(fetch, 12))
        assert take(admin, "watched", READ) == 1
        assert not admin.produce("watched", batch(1)).error_code
        answer = stranger.receive(1, 12).responses[0].partitions[0]
    assert (answer.error_code, answer.records or b"") == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"")


def test_the_command_line_gives_shows_explains_and_takes(bootstrap: str) -> None:
    """`odradek acl add --user U --operation write --topic T` gives a right. `acl check` explains the decision."""
    rule = ("--user", "alice", "--operation", "write", "--topic", "t")
    assert odradek_here("acl", "add", *rule, "--dry-run", "--json", bootstrap=bootstrap).code == 0
    check = ("acl", "check", *rule, "--json")
    before = odradek_here(*check, bootstrap=bootstrap)
    assert (before.code, json.loads(before.out)["checks"][0]["reason"]) == (1, "no rule")
    assert odradek_here("acl", "add", *rule, bootstrap=bootstrap).code == 0
    after = odradek_here(*check, bootstrap=bootstrap)
    assert after.code == 0
    assert json.loads(after.out)["checks"][0]["rule"]["principal"] == "User:alice"
    denial = ("--user", "*", "--operation", "all", "--topic", "t", "--deny")
    assert odradek_here("acl", "add", *denial, bootstrap=bootstrap).code == 0
    denied = odradek_here(*check, bootstrap=bootstrap)
    assert (denied.code, json.loads(denied.out)["checks"][0]["rule"]["permission"]) == (1, "deny")
    listed = json.loads(odradek_here("acl", "list", "--topic", "t", "--json", bootstrap=bootstrap).out)
    assert len(listed["acls"]) == 2
    removed = odradek_here("acl", "remove", "--topic", "t", "--json", bootstrap=bootstrap)
    assert len(json.loads(removed.out)["acls"]) == 2
    assert odradek_here("acl", "remove", bootstrap=bootstrap).code == 2


def test_one_rule_of_several_alike_is_removed(bootstrap: str) -> None:
    """`acl remove --exact` removes only the ACL that `acl add` makes of the same options, and no similar ones."""
    rule = ("--user", "erin", "--operation", "read", "--topic", "alike")
    for more in ((), ("--prefixed",), ("--deny",)):
        assert odradek_here("acl", "add", *rule, *more, bootstrap=bootstrap).code == 0
    removed = odradek_here("acl", "remove", "--exact", *rule, "--json", bootstrap=bootstrap).json()["acls"]
    assert [(each["pattern_type"], each["permission"]) for each in removed] == [("literal", "allow")]
    assert odradek_here("acl", "remove", "--deny", *rule, bootstrap=bootstrap).code == 2
    left = odradek_here("acl", "remove", *rule, "--json", bootstrap=bootstrap).json()["acls"]
    assert len(left) == 2


def test_an_operation_that_a_resource_has_not_is_refused(bootstrap: str) -> None:
    """An operation that does not exist for a resource type is refused as a usage error."""
    wrong = odradek_here(
        "acl", "add", "--user", "a", "--operation", "create", "--group", "g", bootstrap=bootstrap
    )
    assert wrong.code == 2
    assert "a group has no operation create" in wrong.err


@pytest.mark.java
def test_kafkas_own_tool_works(bootstrap: str, kafka_jars: object) -> None:
    """Kafka's kafka-acls adds, lists and removes ACLs, and our command shows the same ones."""
    tool = ("org.apache.kafka.tools.AclCommand", "--bootstrap-server", bootstrap)
    rule = ("--allow-principal", "User:carol", "--producer", "--topic", "pre")
    run_tool_here(*tool, "--add", *rule, "--resource-pattern-type", "prefixed")
    listed = odradek_here("acl", "list", "--user", "carol", "--json", bootstrap=bootstrap)
    assert {each["operation"] for each in json.loads(listed.out)["acls"]} == {
        "write",
        "describe",
        "create",
    }
    assert "principal=User:carol" in run_tool_here(
        *tool, "--list", "--topic", "present", "--resource-pattern-type", "match"
    )
    run_tool_here(*tool, "--remove", *rule, "--resource-pattern-type", "prefixed", "--force")
    assert not json.loads(odradek_here("acl", "list", "--user", "carol", "--json", bootstrap=bootstrap).out)[
        "acls"
    ]
