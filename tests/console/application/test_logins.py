"""Logins of the console: users of the cluster see what they may see, and their sessions are guarded."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from odradek.console.sessions.logins import Logins
from odradek.console.sessions.session_table import (
    FAILURE_SECONDS,
    FAILURES_MAX,
    IDLE_SECONDS_MAX,
    KEYS_MAX,
    LIFE_SECONDS_MAX,
    SESSIONS_MAX,
    FailedLogins,
    SessionTable,
)
from odradek.console.sessions.shared_parts import shared_parts
from odradek.console.settings import ConsoleSettings, why_refused
from tests.console.application.console_here import Console, console_for
from tests.console.http.served import status_of
from tests.security.secured_node import SecuredNode


@pytest.fixture
def console(secured: SecuredNode) -> Iterator[Console]:
    client = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": secured.authority,
        "ssl.truststore.type": "PEM",
    }
    with console_for(ConsoleSettings(bootstrap=secured.sasl_tls, client=client)) as running:
        yield running


def test_a_stranger_only_learns_how_to_log_in(console: Console) -> None:
    """Without a session, the API only gives the mechanisms."""
    browser = console.browser()
    session = browser.ok("/api/session")
    assert isinstance(session, dict)
    assert session == {
        "user": None,
        "mechanisms": ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"],
        "login_needed": True,
        "certificate_user": None,
        "cluster_id": None,
        "version": session["version"],
        "is_kafka": None,
    }
    for path in ("overview", "topics", "brokers", "events?view=overview", "session?x=1", "nothing"):
        status, document = browser.get(f"/api/{path}")
        assert isinstance(document, dict)
        assert (status, document["code"]) == (401, "LOGIN_NEEDED"), path
    assert browser.get("/")[0] == 200


@pytest.mark.parametrize(
    "credentials",
    [
        {"user": "alice", "password": "alice-secret"},
        {"user": "jürgen, é=è", "password": "jürgen, é=è-secret", "mechanism": "SCRAM-SHA-256"},
        {"user": "carol", "password": "carol-secret", "mechanism": "PLAIN"},
        {"token": ""},
    ],
    ids=["SCRAM", "names", "PLAIN", "token"],
)
def test_users_of_the_cluster_log_in(
    console: Console, secured: SecuredNode, credentials: dict[str, str]
) -> None:
    """A name with a password, or a token, opens a session; its cookie is out of reach of scripts and of other sites."""
    if "token" in credentials:
        credentials = {"token": secured.issuer.token(sub="olga")}
    browser = console.browser()
    assert browser.log_in(**credentials) == (200, {})
    name, _, rest = browser.set_cookie.partition("=")
    secret, *attributes = rest.split("; ")
    assert name == "odradek-console-9644"
    assert len(secret) >= 43
    assert set(attributes) == {"Path=/", "HttpOnly", "SameSite=Strict"}
    session = browser.ok("/api/session")
    assert isinstance(session, dict)
    assert session["user"] == credentials.get("user", "olga")
    assert session["login_needed"] is False
    assert session["cluster_id"]
    assert isinstance(browser.ok("/api/overview"), dict)
    other = console.browser()
    other.cookie = f"{name}={secret[:-1]}x"
    assert other.get("/api/overview")[0] == 401


@pytest.mark.parametrize(
    ("credentials", "status"),
    [
        ({"user": "alice", "password": "wrong"}, 401),
        ({"user": "nobody", "password": "wrong"}, 401),
        ({"token": "not.a.token"}, 401),
        ({"user": "alice", "password": "alice-secret", "mechanism": "GSSAPI"}, 400),
        ({"user": "alice", "password": "alice-secret", "mechanism": "OAUTHBEARER"}, 400),
        ({"user": "alice"}, 400),
        ({"password": "alice-secret"}, 400),
        ({"user": "", "password": ""}, 400),
        ({"user": "alice", "password": "alice-secret", "token": "x"}, 400),
        ({"user": ["alice"], "password": {"$ne": ""}}, 400),
        ({"user": "a" * 20_000, "password": "x"}, 400),
        ({"user": "a\u0000b", "password": "x\u0000"}, 401),
        ({"user": "\ud800", "password": "x"}, 400),
        ({"user": "alice", "password": "\udfff"}, 400),
        ({"token": "\ud800"}, 400),
        ({}, 400),
        ([], 400),
    ],
)
def test_wrong_credentials_open_no_session(console: Console, credentials: object, status: int) -> None:
    """A refused login says so in one sentence, and sets no cookie."""
    browser = console.browser()
    found, document, _ = browser.send("POST", "/api/login", credentials)
    assert found == status, document
    assert browser.cookie is None
    assert "alice-secret" not in json.dumps(document)


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 5000, b"\xff\xfe", b"null", b'"x"', b"{" * 60_000])
def test_a_login_that_is_no_json_is_refused(console: Console, body: bytes) -> None:
    """A body that cannot be read is refused, however deep it nests."""
    assert console.browser().send("POST", "/api/login", body=body)[0] == 400


def test_a_form_of_another_site_logs_nobody_in(console: Console) -> None:
    """A login needs the console's own origin, and a type that a plain form cannot send."""
    document = {"user": "alice", "password": "alice-secret"}
    browser = console.browser()
    for headers, status in (
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "evil.example"}, 421),
    ):
        assert browser.send("POST", "/api/login", document, headers)[0] == status
        assert browser.cookie is None


def test_an_address_that_guesses_has_to_wait(console: Console) -> None:
    """After five failures within a minute, even the right password has to wait."""
    browser = console.browser()
    for _ in range(FAILURES_MAX):
        assert browser.log_in(user="alice", password="wrong")[0] == 401
    status, document = browser.log_in(user="alice", password="alice-secret")
    assert isinstance(document, dict)
    assert (status, document["code"]) == (429, "TOO_MANY_LOGINS")


def test_a_logout_ends_the_session_and_its_streams(console: Console) -> None:
    """After a logout, the cookie opens nothing, and pages that listen get to know it. Other sessions of the user go on."""
    first, second = console.browser(), console.browser()
    for each in (first, second):
        assert each.log_in(user="bob", password="bob-secret")[0] == 200
    assert isinstance(console.door, Logins)
    assert console.door.statistics() == {"sessions": 2, "accounts": 1}
    kept = first.cookie
    assert first.send("POST", "/api/logout")[0] == 200
    assert "Max-Age=0" in first.set_cookie
    first.cookie = kept
    assert first.get("/api/overview")[0] == 401
    assert second.get("/api/overview")[0] == 200
    events = second.events("/api/events?view=overview")
    assert next(events)[0] == "overview"
    assert second.send("POST", "/api/logout")[0] == 200
    rest = list(events)
    assert rest[-1][0] == "trouble"
    assert console.door.statistics() == {"sessions": 0, "accounts": 0}


def test_users_see_what_they_may_see(console: Console, secured: SecuredNode) -> None:
    """Answers of one user are never given to another one."""
    alice, bob = console.browser(), console.browser()
    assert alice.log_in(user="alice", password="alice-secret")[0] == 200
    assert bob.log_in(user="bob", password="bob-secret")[0] == 200
    for browser, name in ((alice, "alice"), (bob, "bob")) * 2:
        session = browser.ok("/api/session")
        assert isinstance(session, dict)
        assert session["user"] == name


def test_a_cookie_with_hostile_bytes_is_no_session(console: Console) -> None:
    """Any bytes in a cookie are just no session."""
    for cookie in (
        b"odradek-console-9644=\xff\xfe",
        b"odradek-console-9644",
        b"=",
        b";;;",
        b"odradek-console-9644=" + b"a" * 9000,
    ):
        with socket.create_connection(("127.0.0.1", console.port), 20) as connection:
            connection.sendall(
                b"GET /api/overview HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: " + cookie + b"\r\n\r\n"
            )
            assert status_of(connection.recv(65536)) == 401


def test_sessions_end_by_time_and_by_number() -> None:
    """A session ends when it was idle for too long, at the end of its life, and when there are too many."""
    table: SessionTable[str] = SessionTable()
    assert table.open("a", "A", 0.0, owner=1) == []
    assert table.find("a", IDLE_SECONDS_MAX) == "A"
    assert table.find("a", 2 * IDLE_SECONDS_MAX + 1) is None
    table.open("b", "B", 0.0, owner=1)
    now = 0.0
    while now < LIFE_SECONDS_MAX:
        now += IDLE_SECONDS_MAX / 2
        table.find("b", now)
    assert table.find("b", now + 1) is None
    assert sorted(table.expire(now + 1)) == ["A", "B"]
    for number in range(SESSIONS_MAX):
        assert table.open(f"s{number}", str(number), 10.0 + number, owner=number) == []
    assert table.open("new", "new", 1000.0, owner="new") == ["0"]
    assert len(table) == SESSIONS_MAX
    assert table.close("new") == "new"
    assert table.close("new") is None


def test_failures_of_many_addresses_stop_nobody_else() -> None:
    """A crowd that guesses holds up only itself. After a minute its failures are forgotten."""
    failed = FailedLogins(FAILURES_MAX)
    for number in range(2 * KEYS_MAX):
        for _ in range(FAILURES_MAX):
            failed.add(f"10.0.{number >> 8}.{number & 255}", 1.0)
    assert failed.wait_seconds("192.0.2.1", 2.0) == 0
    assert failed.wait_seconds("10.0.7.255", 2.0) == FAILURE_SECONDS - 1
    assert failed.wait_seconds("10.0.7.255", 1.0 + FAILURE_SECONDS) == 0


def test_a_console_without_tls_or_logins_stays_on_loopback() -> None:
    """Away from loopback, a console needs both. It takes no credentials of its own."""
    sasl = {"security.protocol": "SASL_SSL"}
    tls = {"ssl.keystore.location": "x"}
    for host in ("", "0.0.0.0", "::", "10.0.0.1", "console.example", "127.0.0.1.example"):
        assert why_refused(ConsoleSettings(bootstrap="a:1", host=host, client=sasl, tls=tls)) is None
        assert "without encryption" in (
            why_refused(ConsoleSettings(bootstrap="a:1", host=host, client=sasl)) or ""
        )
        assert "no login" in (why_refused(ConsoleSettings(bootstrap="a:1", host=host, tls=tls)) or "")
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        assert why_refused(ConsoleSettings(bootstrap="a:1", host=host)) is None
    assert why_refused(ConsoleSettings(bootstrap="a:1", client=sasl)) is None
    for key in ("sasl.jaas.config", "odradek.sasl.password", "sasl.mechanism"):
        refusal = why_refused(ConsoleSettings(bootstrap="a:1", client={**sasl, key: "secret-x"}))
        assert refusal is not None
        assert key in refusal
        assert "secret-x" not in refusal


def test_nobody_sees_the_cluster_with_a_certificate_by_mistake() -> None:
    """Where nobody logs in, a client's certificate would give its rights to everybody. It takes a word of its own."""
    allowed = {"odradek.console.as.certificate": "true"}
    for protocol, key, is_refused in (
        ("SSL", "ssl.keystore.location", True),
        ("SSL", "ssl.keystore.key", True),
        ("SSL", "ssl.key.password", True),
        ("SSL", "odradek.ssl.keystore.location", True),
        ("SSL", "ssl.truststore.location", False),
        ("SASL_SSL", "ssl.keystore.location", False),
        ("SSL", "odradek.controller.ssl.keystore.location", True),
        ("SASL_SSL", "odradek.controller.ssl.keystore.location", True),
        ("SASL_SSL", "odradek.controller.sasl.mechanism", True),
        ("SASL_SSL", "odradek.controller.odradek.sasl.password", True),
        ("SASL_SSL", "odradek.controller.ssl.truststore.location", False),
    ):
        client = {"security.protocol": protocol, key: "secret-x"}
        refusal = why_refused(ConsoleSettings(bootstrap="a:1", client=client))
        assert (refusal is not None) is is_refused, (protocol, key)
        if refusal is not None:
            assert key in refusal
            assert "odradek.console.as.certificate=true" in refusal
            assert "secret-x" not in refusal
        assert why_refused(ConsoleSettings(bootstrap="a:1", client={**client, **allowed})) is None
    assert shared_parts(allowed)[1] == {}
