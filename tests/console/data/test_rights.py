"""The views as users with few rights see them: the brokers decide, and nothing leaks past them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek import Admin, Producer
from odradek.client.admin import NewTopic
from odradek.console.settings import ConsoleSettings
from odradek.security.acls.rules import (
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from testkit.processes import free_ports
from tests.console.application.console_here import Browser, Console, console_for, in_path
from tests.security.logins.issuer import Issuer
from tests.security.secured_node import make_certificates, properties, start

pytestmark = pytest.mark.long
"""The node has an authorizer, which that of other tests lacks."""

PATIENCE_SECONDS = 30.0
TOPIC, SECRET = "shop.orders", "shop.secret"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """A console of a node with an authorizer. User bob may read one topic; alice may do nothing."""
    directory: Path = tmp_path_factory.mktemp("rights")
    make_certificates(directory)
    (directory / "jwks.json").write_bytes(Issuer().document())
    ports = free_ports(6)
    settings = {
        **properties(directory, ports),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
    }
    users = [f'SCRAM-SHA-256=[name="{name}",password="{name}-secret"]' for name in ("alice", "bob", "dave")]
    server = start(directory, settings, users)
    try:
        with Admin(bootstrap_servers=f"127.0.0.1:{ports[0]}") as admin:
            admin.create_topics([NewTopic(TOPIC, 1, 1), NewTopic(SECRET, 1, 1)])
            rules = [
                Acl(kind, name, PatternType.LITERAL, "User:bob", "*", operation, Permission.ALLOW)
                for kind, name, operation in (
                    (ResourceType.TOPIC, TOPIC, Operation.READ),
                    (ResourceType.GROUP, "g", Operation.READ),
                )
            ]
            rules += [
                Acl(
                    ResourceType.CLUSTER,
                    CLUSTER_NAME,
                    PatternType.LITERAL,
                    user,
                    "*",
                    operation,
                    Permission.ALLOW,
                )
                for user, operation in (
                    ("User:carol", Operation.DESCRIBE),
                    ("User:dave", Operation.DESCRIBE),
                    ("User:dave", Operation.DESCRIBE_CONFIGS),
                )
            ]
            assert not any(admin.create_acls(rules).values())
            with Producer(bootstrap_servers=f"127.0.0.1:{ports[0]}") as producer:
                for topic in (TOPIC, SECRET):
                    producer.send(topic, b"a value").result(20)
            admin.alter_group_offsets("g", {(TOPIC, 0): 0})
        client = {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.location": str(directory / "authority.pem"),
            "ssl.truststore.type": "PEM",
            "odradek.controller.security.protocol": "PLAINTEXT",
        }
        with console_for(ConsoleSettings(bootstrap=f"127.0.0.1:{ports[5]}", client=client)) as running:
            yield running
    finally:
        server.stop()


def logged_in(console: Console, user: str, mechanism: str = "SCRAM-SHA-256") -> Browser:
    """Return a browser whose user has logged in."""
    browser = console.browser()
    assert browser.log_in(user=user, password=f"{user}-secret", mechanism=mechanism)[0] == 200
    return browser


@pytest.fixture(scope="module")
def alice(console: Console) -> Browser:
    """A user without any right."""
    return logged_in(console, "alice")


@pytest.fixture(scope="module")
def bob(console: Console) -> Browser:
    """A user who may read one topic."""
    return logged_in(console, "bob")


@pytest.fixture(scope="module")
def admin(console: Console) -> Browser:
    """A super user."""
    return logged_in(console, "admin", "PLAIN")


def test_the_history_needs_the_rights_to_all_that_it_shows(console: Console) -> None:
    """It has the values of keys and quotas. So DESCRIBE on the cluster is too little, also for the overview's newest changes."""
    carol, dave = logged_in(console, "carol", "PLAIN"), logged_in(console, "dave")
    status, error = carol.get("/api/history")
    assert isinstance(error, dict)
    assert (status, error["code"]) == (403, "CLUSTER_AUTHORIZATION_FAILED")
    found = carol.ok("/api/overview")
    assert isinstance(found, dict)
    assert found["events"] is None
    found = dave.ok("/api/history")
    assert isinstance(found, dict)
    assert SECRET in str(found["rows"])


def test_a_user_without_rights_sees_nothing(alice: Browser) -> None:
    """Lists are empty, names lead nowhere, and what needs a right is refused with a sentence."""
    for path in ("topics", "groups", "transactions"):
        found = alice.ok(f"/api/{path}")
        assert isinstance(found, dict)
        assert (found["total"], found["rows"]) == (0, []), path
    assert alice.ok("/api/moves")["total"] == 0
    found = alice.ok("/api/access")
    assert (found["rules"], found["users"], found["quotas"], found["total"]) == ([], None, None, None)
    assert found["errors"]
    assert alice.ok("/api/clients")["rows"] == []
    for path in (
        in_path("topics", SECRET),
        in_path("topics", SECRET, "configs"),
        in_path("groups", "g"),
        f"/api/message?topic={SECRET}&partition=0&offset=0",
        f"/api/download?topic={SECRET}",
        "/api/history",
        "/api/overview",
        f"/api/access/check?principal=alice&operation=read&resource=topic:{SECRET}",
    ):
        status, error = alice.get(path)
        assert isinstance(error, dict)
        assert status == 403, (path, status, error)
        assert error["sentence"], path
        assert "a value" not in str(error)
    ((name, trouble),) = list(alice.events(f"/api/messages?topic={SECRET}"))
    assert (name, trouble["status"]) == ("trouble", 403)


def test_a_user_sees_what_he_may_read(bob: Browser) -> None:
    """A reader of one topic sees it, its records and its groups; sizes that need more rights are null."""
    found = bob.ok("/api/topics")
    assert [each["name"] for each in found["rows"]] == [TOPIC]
    assert found["rows"][0]["bytes"] is None
    described = bob.ok(in_path("topics", TOPIC))
    assert described["partitions"][0]["log_end_offset"] == 1
    assert described["skew"]["bytes"] is None
    events = list(bob.events(f"/api/messages?topic={TOPIC}"))
    assert [value["value"]["text"] for name, value in events if name == "record"] == ["a value"]
    (group,) = bob.ok("/api/groups")["rows"]
    assert (group["id"], group["lag"]) == ("g", 1)
    assert bob.get(in_path("topics", SECRET))[0] == 403
    assert bob.get(in_path("topics", TOPIC, "configs"))[0] == 403


def test_a_super_user_sees_all_and_why(admin: Browser) -> None:
    """The reason of each decision is a rule or its absence. Super users stand in files of the nodes alone."""
    found = admin.ok("/api/access")
    assert (found["has_authorizer"], found["total"]) == (True, 5)
    assert [each["name"] for each in found["users"]] == ["alice", "bob", "dave"]

    def check(principal: str, operation: str, resource: str) -> dict[str, object]:
        answer = admin.ok(
            f"/api/access/check?principal={principal}&operation={operation}&resource={resource}"
        )
        assert isinstance(answer, dict)
        assert answer["is_certain"] >= answer["allowed"]
        return answer

    allowed = check("bob", "read", f"topic:{TOPIC}")
    assert allowed["allowed"]
    assert allowed["rule"]["principal"] == "User:bob"
    assert (
        check("bob", "read", f"topic:{SECRET}")["allowed"],
        check("bob", "write", f"topic:{TOPIC}")["allowed"],
    ) == (
        False,
        False,
    )
    assert check("admin", "alter", "cluster")["why"] == "no rule allows it"
    assert not check("admin", "alter", "cluster")["is_certain"]
    deadline = time.monotonic() + PATIENCE_SECONDS
    kinds: set[str] = set()
    while "acl" not in kinds:
        assert time.monotonic() < deadline
        kinds = {row["kind"] for row in admin.ok("/api/history")["rows"]}
    assert "secret" not in str(admin.ok("/api/history?kind=user"))


def test_views_of_users_are_not_shared(alice: Browser, bob: Browser, admin: Browser) -> None:
    """What one user has just seen is not shown to another one."""
    for _ in range(3):
        assert len(admin.ok("/api/topics")["rows"]) >= 2
        assert [each["name"] for each in bob.ok("/api/topics")["rows"]] == [TOPIC]
        assert alice.ok("/api/topics")["rows"] == []
        assert admin.get("/api/history")[0] == 200
        assert bob.get("/api/history")[0] == 403
