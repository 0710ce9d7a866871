"""A node's metrics page for users of the cluster: by TLS, with a password or a certificate."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from odradek.env.real import RealEnv
from odradek.node.configuration.node_config import ConfigError, NodeConfig
from odradek.node.metrics.page.page_logins import CHECKS_MAX, CHECKS_PER_ADDRESS_MAX, Answer, PageLogins
from odradek.security.audit.auditor import Auditor
from odradek.security.scram import MECHANISMS, ServerKeys, server_keys
from testkit.processes import free_ports
from tests.cli.running import odradek
from tests.security.secured_node import make_certificates, properties, start

SCRAM = ["SCRAM-SHA-256=[name=alice,password=alice-secret]", "SCRAM-SHA-512=[name=bob,password=bob-secret]"]


@attrs.frozen
class Place:
    """A node whose page uses TLS and requires a login."""

    directory: Path
    port: int
    plaintext: str

    def get(
        self,
        user: str | None = None,
        password: str = "",
        certificate: str | None = None,
        path: str = "/metrics",
    ) -> tuple[int, str]:
        """Return status and body of the page, or of another path."""
        context = ssl.create_default_context(cafile=str(self.directory / "authority.pem"))
        if certificate is not None:
            context.load_cert_chain(certificate)
        conn = HTTPSConnection("127.0.0.1", self.port, timeout=30, context=context)
        headers = {}
        if user is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        conn.request("GET", path, headers=headers)
        answer = conn.getresponse()
        return answer.status, answer.read().decode()

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Wait for lines about the page in the audit log, and return them."""
        deadline = time.monotonic() + 30
        while True:
            paths = (self.directory / "data").glob("audit*.log")
            lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
            found = [line for line in lines if line["event"] == event and line.get("listener") == "METRICS"]
            if found:
                return found
            assert time.monotonic() < deadline, f"the audit log has no line {event} about the page after 30 s"
            time.sleep(0.05)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("guarded")
    *ports, metrics_port = free_ports(7)
    make_certificates(directory)
    (directory / "jwks.json").write_text('{"keys": []}')
    settings = {
        **properties(directory, ports),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:CN=dora",
        "odradek.metrics.listener": f"127.0.0.1:{metrics_port}",
        "odradek.metrics.security.protocol": "SSL",
        "odradek.metrics.login": "true",
        "listener.name.metrics.ssl.client.auth": "requested",
        "listener.name.metrics.ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/CN=$1/,DEFAULT",
    }
    server = start(directory, settings, SCRAM)
    try:
        place = Place(directory, metrics_port, f"127.0.0.1:{ports[0]}")
        for words in (
            "acl add --user alice --operation describe --cluster",
            "topic create orders",
        ):
            done = odradek(*words.split(), bootstrap=place.plaintext)
            assert done.code == 0, done
        yield place
        assert server.is_running(), server.log_tail()
    finally:
        server.stop()


def test_a_user_with_the_right_reads_the_page(guarded: Place) -> None:
    """A user logs in with a SCRAM password. The page shows names, and many scrapes make one line of the audit log."""
    deadline = time.monotonic() + 30
    while guarded.get("alice", "alice-secret")[0] == 403 and time.monotonic() < deadline:
        time.sleep(0.1)
    for _ in range(5):
        status, page = guarded.get("alice", "alice-secret")
        assert status == 200
        assert 'topic="orders"' in page
    lines = guarded.lines("login")
    assert [(line["principal"], line["mechanism"]) for line in lines] == [("User:alice", "BASIC")]


def test_others_do_not_read_it(guarded: Place) -> None:
    """Strangers, wrong passwords, and users without DESCRIBE on the cluster are refused."""
    assert guarded.get()[0] == 401
    assert guarded.get("alice", "wrong")[0] == 401
    assert guarded.get("nobody", "alice-secret")[0] == 401
    status, text = guarded.get("bob", "bob-secret")
    assert status == 403
    assert "DESCRIBE" in text
    lines = guarded.lines("login.failed")
    assert {line["claimed"] for line in lines} <= {"alice", "nobody", "User:bob"}
    assert "secret" not in json.dumps(lines)


def test_the_health_is_open_to_all(guarded: Place) -> None:
    """The two answers about the node's health need no login. All forms of the page do."""
    assert guarded.get(path="/healthz") == (200, "ok\n")
    assert guarded.get(path="/ready") == (200, "ready\n")
    assert guarded.get(path="/metrics?names=kafka")[0] == 401


def test_a_certificate_is_a_login(guarded: Place) -> None:
    """If the listener requests certificates, a certificate that the authority has signed replaces the password."""
    status, _ = guarded.get(certificate=str(guarded.directory / "dora.pem"))
    assert status == 200


def test_a_changed_password_holds_at_once(guarded: Place) -> None:
    """A password is changed, and then the user removed. The old password is refused at once."""
    (guarded.directory / "p").write_text("new-secret\n")

    def run(*words: str) -> None:
        done = odradek(*words, bootstrap=guarded.plaintext)
        assert done.code == 0, done

    def wait(password: str, status: int) -> None:
        deadline = time.monotonic() + 30
        while (found := guarded.get("eve", password)[0]) != status:
            assert time.monotonic() < deadline, found
            time.sleep(2)

    (guarded.directory / "first").write_text("first-secret\n")
    run("user", "add", "eve", "--password-file", str(guarded.directory / "first"))
    run("acl", "add", "--user", "eve", "--operation", "describe", "--cluster")
    wait("first-secret", 200)
    run("user", "password", "eve", "--password-file", str(guarded.directory / "p"))
    wait("new-secret", 200)
    assert guarded.get("eve", "first-secret")[0] in (401, 429)
    run("user", "remove", "eve")
    deadline = time.monotonic() + 30
    while guarded.get("eve", "new-secret")[0] == 200:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_plain_http_gets_nothing(guarded: Place) -> None:
    """A request in plaintext is closed without an answer, before its password is read."""
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=30) as conn:
        conn.sendall(b"GET /metrics HTTP/1.1\r\nAuthorization: Basic YWxpY2U6YWxpY2Utc2VjcmV0\r\n\r\n")
        answer = b""
        with suppress(ConnectionError):
            answer = conn.recv(1000)
    assert b"HTTP" not in answer


# -- guessing -------------------------------------------------------------------------------------------------------


def keys(password: str) -> ServerKeys:
    mechanism = MECHANISMS["SCRAM-SHA-256"]
    salt = b"salt"
    return server_keys(mechanism, mechanism.salted_password(password, salt, 4096), salt, 4096)


def header(user: str, password: str) -> bytes:
    return b"Basic " + base64.b64encode(f"{user}:{password}".encode())


def page_logins(users: dict[str, ServerKeys]) -> PageLogins:
    return PageLogins(
        RealEnv(), lambda name, number: users.get(name) if number == 1 else None, None, Auditor(1)
    )


@pytest.mark.trio
async def test_who_guesses_is_held_back() -> None:
    """An address may guess a few times, and all addresses together a few times more.

    A user who is remembered is not affected.
    """
    logins = page_logins({"alice": keys("right")})
    assert await logins.check(header("alice", "right"), "10.0.0.9", None) is Answer.WELCOME
    told = [await logins.check(header("alice", f"wrong {n}"), "10.0.0.1", None) for n in range(20)]
    assert told.count(Answer.UNKNOWN) == CHECKS_PER_ADDRESS_MAX
    assert told[-1] is Answer.TOO_MANY
    for number in range(3 * CHECKS_MAX):
        await logins.check(header("alice", "wrong"), f"10.0.1.{number}", None)
    assert await logins.check(header("alice", "wrong"), "10.0.2.1", None) is Answer.TOO_MANY
    before = logins.checks
    assert await logins.check(header("alice", "right"), "10.0.0.1", None) is Answer.WELCOME
    assert logins.checks == before <= CHECKS_MAX + 10


@pytest.mark.trio
async def test_a_password_is_computed_once() -> None:
    """A hundred scrapes compute PBKDF2 only once. After a change of the password, it is computed again."""
    users = {"alice": keys("right")}
    logins = page_logins(users)
    for _ in range(100):
        assert await logins.check(header("alice", "right"), "10.0.0.1", None) is Answer.WELCOME
    assert logins.checks == 1
    users["alice"] = keys("other")
    assert await logins.check(header("alice", "right"), "10.0.0.1", None) is Answer.UNKNOWN


@pytest.mark.trio
async def test_a_user_who_goes_during_the_check_is_not_let_in() -> None:
    """A user is removed while the password is being checked. The request is refused."""
    users = {"alice": keys("right")}
    logins = page_logins(users)
    answers = []

    async def ask() -> None:
        answers.append(await logins.check(header("alice", "right"), "10.0.0.1", None))

    async with trio.open_nursery() as tasks:
        tasks.start_soon(ask)
        await trio.lowlevel.checkpoint()
        users.clear()
    assert answers == [Answer.UNKNOWN]


@pytest.mark.trio
@pytest.mark.parametrize(
    "text", [b"", b"Basic", b"Basic !", b"Basic " + b"A" * 10, b"Bearer YTpi", b"Basic " + base64.b64encode(b":b"),
             b"Basic " + base64.b64encode(b"a:b\x00"), b"Basic " + base64.b64encode(b"\xff:b"), b"Basic " + base64.b64encode(b"a:" + b"x" * 3000)],
)  # fmt: skip
async def test_what_is_no_name_and_password_costs_nothing(text: bytes) -> None:
    """A malformed Authorization header is refused without computing a password."""
    logins = page_logins({"alice": keys("right")})
    assert await logins.check(text, "10.0.0.1", None) is Answer.UNKNOWN
    assert logins.checks == 0


def config(**keys: str) -> NodeConfig:
    return NodeConfig.from_properties(
        {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "1@127.0.0.1:9093",
            "odradek.metrics.listener": "10.0.0.1:9592",
            **{key.replace("_", "."): value for key, value in keys.items()},
        }
    )


def test_a_password_needs_tls() -> None:
    """A configuration with logins and without TLS is refused. The error names the missing key."""
    with pytest.raises(ConfigError, match=r"odradek\.metrics\.security\.protocol=SSL"):
        config(odradek_metrics_login="true")


@pytest.mark.parametrize(
    ("keys", "has_names"),
    [
        ({}, False),
        ({"odradek_metrics_names": "true"}, True),
        ({"odradek_metrics_listener": "127.0.0.1:1"}, True),
        ({"odradek_metrics_listener": "[::1]:1"}, True),
        ({"odradek_metrics_listener": "localhost:1"}, True),
        ({"odradek_metrics_listener": ":1"}, False),
        ({"odradek_metrics_listener": "127.0.0.1.example.org:1"}, False),
        ({"odradek_metrics_listener": "127.0.0.1:1", "odradek_metrics_names": "false"}, False),
        (
            {
                "odradek_metrics_security_protocol": "SSL",
                "ssl_keystore_type": "PEM",
                "ssl_keystore_location": "/n",
            },
            False,
        ),
        (
            {
                "odradek_metrics_security_protocol": "SSL",
                "ssl_keystore_type": "PEM",
                "ssl_keystore_location": "/n",
                "odradek_metrics_login": "true",
            },
            True,
        ),
    ],
)
def test_where_names_are_shown(keys: dict[str, str], has_names: bool) -> None:
    """The page shows names by default on loopback, and if readers have to log in."""
    found = config(**keys)
    assert found.metrics is not None
    assert found.metrics.has_names is has_names
    assert not found.warnings
