"""Logins by a client's certificate: the console gets a token for its owner, and the brokers decide what he sees."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import attrs
import pytest

from odradek import Admin
from odradek.client.admin import DelegationToken, NewTopic
from odradek.console import process
from odradek.console.sessions.logins import Logins
from odradek.console.sessions.token_maker import TokenMaker
from odradek.console.settings import ConsoleSettings, why_refused
from odradek.security.acls.acl_requests import AclFilter
from odradek.security.acls.rules import Acl, Operation, PatternType, Permission, ResourceType
from testkit.processes import ServerProcess, free_ports
from tests.console.application.console_here import Browser, Console, console_for
from tests.security.certificates import Authority, Issued
from tests.security.logins.issuer import Issuer
from tests.security.secured_node import make_certificates, properties, start

pytestmark = pytest.mark.long
"""The node has an authorizer, which that of other tests lacks."""

PATIENCE_SECONDS = 30.0
BRIEF_SECONDS = 3.0
"""The life of a token that a test waits for."""
OURS, THEIRS = "ours", "theirs"
OWN = {
    "sasl.mechanism": "SCRAM-SHA-256",
    "odradek.sasl.username": "console",
    "odradek.sasl.password": "console-secret",
}
"""The keys of the console's own user."""


@attrs.frozen
class Place:
    """A node with an authorizer, and the authority of people's certificates."""

    directory: Path
    plaintext: str
    sasl: str
    """The listener with logins, and in `keys` how clients reach it."""
    keys: Mapping[str, str]
    people: Authority = attrs.field(factory=Authority)

    def settings(self, **more: str) -> ConsoleSettings:
        """Return the settings of a console that lets people in by certificate."""
        return ConsoleSettings(
            bootstrap=self.sasl,
            client={**self.keys, **{f"odradek.console.tokens.{key}": text for key, text in OWN.items()}},
            tls={
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.directory / "node.pem"),
                "listener.name.console.ssl.client.auth": "requested",
                "listener.name.console.ssl.truststore.type": "PEM",
                "listener.name.console.ssl.truststore.location": self.people.write(
                    self.directory / "people.pem"
                ),
                "listener.name.console.ssl.principal.mapping.rules": "RULE:^CN=([A-Za-z]+)$/$1/",
                **more,
            },
            super_users=("User:admin",),
        )

    def context(self, issued: Issued | None = None) -> ssl.SSLContext:
        """Return the TLS of a browser, with a certificate of its own."""
        context = ssl.create_default_context(cafile=str(self.directory / "authority.pem"))
        if issued is not None:
            path = self.directory / "person.pem"
            issued.write(path)
            context.load_cert_chain(path)
        return context

    def person(self, console: Console, name: str) -> Browser:
        """Return a browser with a certificate of this name."""
        return console.browser(self.context(self.people.issue(name)))

    def as_console(self) -> Admin:
        """Return a client of the console's own user."""
        return Admin({"bootstrap.servers": self.sasl, **self.keys, **OWN})

    def tokens(self, owner: str) -> list[DelegationToken]:
        """Return the tokens of an owner, by the console's own user, who may renew them."""
        with self.as_console() as admin:
            found = admin.describe_delegation_tokens([owner])
            return [each for each in found if each.expires_at_ms > time.time() * 1000]

    def expire(self, token: DelegationToken) -> None:
        """End a token, as if the cluster had lost it."""
        with self.as_console() as admin:
            admin.expire_delegation_token(token.hmac)

    def rules(self) -> list[Acl]:
        """Return the rules of the console's user, and of the people."""
        return [
            Acl(kind, name, PatternType.LITERAL, user, "*", operation, Permission.ALLOW)
            for kind, name, user, operation in (
                (ResourceType.USER, "User:dora", "User:console", Operation.CREATE_TOKENS),
                (ResourceType.USER, "User:finn", "User:console", Operation.CREATE_TOKENS),
                (ResourceType.USER, "User:admin", "User:console", Operation.CREATE_TOKENS),
                (ResourceType.USER, "User:ANONYMOUS", "User:console", Operation.CREATE_TOKENS),
                (ResourceType.TOPIC, OURS, "User:dora", Operation.READ),
                (ResourceType.TOPIC, THEIRS, "User:finn", Operation.READ),
            )
        ]


def started(directory: Path, **settings: str) -> tuple[Place, ServerProcess]:
    """Start a node with an authorizer, users, topics and rules."""
    make_certificates(directory)
    (directory / "jwks.json").write_bytes(Issuer().document())
    ports = free_ports(6)
    keys = {
        **properties(directory, ports),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
        **settings,
    }
    users = ['SCRAM-SHA-256=[name="console",password="console-secret"]']
    server = start(directory, {key: value for key, value in keys.items() if value}, users)
    trust = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(directory / "authority.pem"),
        "ssl.truststore.type": "PEM",
    }
    place = Place(directory, f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[5]}", trust)
    furnish(place)
    return place, server


def furnish(place: Place) -> None:
    """Create the topics and the rules."""
    with Admin(bootstrap_servers=place.plaintext) as admin:
        admin.create_topics([NewTopic(OURS, 1, 1), NewTopic(THEIRS, 1, 1)])
        assert not any(admin.create_acls(place.rules()).values())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The node, for all tests of this module."""
    place, server = started(tmp_path_factory.mktemp("certificates"))
    try:
        yield place
    finally:
        server.stop()


@pytest.fixture(scope="module")
def console(place: Place) -> Iterator[Console]:
    """A console that lets people in by certificate."""
    with console_for(place.settings()) as running:
        yield running


def until(what: Callable[[], bool], why: str) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < deadline, why
        time.sleep(0.05)


def topics_of(browser: Browser) -> list[object]:
    """Return the names of the topics that a user sees."""
    found = browser.ok("/api/topics")
    assert isinstance(found, dict)
    return [each["name"] for each in found["rows"]]


def refused(browser: Browser) -> tuple[int, str, str]:
    """Return status, code and sentence of a refused login by certificate."""
    status, document = browser.log_in(certificate=True)
    assert isinstance(document, dict), document
    assert browser.cookie is None
    return status, document["code"], document["sentence"]


def test_the_owner_of_a_certificate_sees_what_is_his(console: Console, place: Place) -> None:
    """Each user sees his topics alone, though the console's own user sees none."""
    for name, topic in (("dora", OURS), ("finn", THEIRS)):
        browser = place.person(console, name)
        session = browser.ok("/api/session")
        assert isinstance(session, dict)
        assert (session["login_needed"], session["certificate_user"]) == (True, name)
        assert browser.get("/api/topics")[0] == 401
        assert browser.log_in(certificate=True) == (200, {})
        assert "Secure" in browser.set_cookie
        session = browser.ok("/api/session")
        assert isinstance(session, dict)
        assert (session["user"], session["mechanisms"]) == (name, ["certificate"])
        assert topics_of(browser) == [topic]
        assert browser.get("/api/overview")[0] == 403
        assert browser.send("POST", "/api/logout")[0] == 200


def test_a_browser_without_a_certificate_logs_in_as_ever(console: Console, place: Place) -> None:
    """Certificates are optional. A browser without one gets the usual login page."""
    browser = console.browser(place.context())
    session = browser.ok("/api/session")
    assert isinstance(session, dict)
    assert (session["login_needed"], session["certificate_user"]) == (True, None)
    assert refused(browser)[:2] == (401, "NO_CERTIFICATE")
    assert browser.log_in(user="console", password="console-secret", mechanism="SCRAM-SHA-256")[0] == 200
    assert topics_of(browser) == []


def test_tls_refuses_expired_and_foreign_certificates(console: Console, place: Place) -> None:
    """An expired certificate, a future one, and one of another authority get no answer at all."""
    for issued in (
        place.people.issue("dora", days=(-10, -1)),
        place.people.issue("dora", days=(1, 10)),
        Authority().issue("dora"),
    ):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            console.browser(place.context(issued)).get("/api/session")


def test_a_cookie_is_nothing_without_its_certificate(console: Console, place: Place) -> None:
    """The session of a certificate belongs to connections with this very certificate. A logout with another ends nothing."""
    dora = place.person(console, "dora")
    assert dora.log_in(certificate=True)[0] == 200
    for context in (
        place.context(),
        place.context(place.people.issue("finn")),
        place.context(place.people.issue("dora")),
    ):
        thief = console.browser(context)
        thief.cookie = dora.cookie
        status, document = thief.get("/api/topics")
        assert isinstance(document, dict)
        assert (status, document["code"]) == (401, "LOGIN_NEEDED")
        thief.send("POST", "/api/logout")
    assert topics_of(dora) == [OURS]
    assert dora.send("POST", "/api/logout")[0] == 200


def test_a_logout_expires_the_token(console: Console, place: Place) -> None:
    """Each login has a token of its own, which ends with it."""
    first, second = place.person(console, "dora"), place.person(console, "dora")
    before = len(place.tokens("User:dora"))
    for each in (first, second):
        assert each.log_in(certificate=True)[0] == 200
    until(lambda: len(place.tokens("User:dora")) == before + 2, "no tokens")
    (newest, *_) = sorted(place.tokens("User:dora"), key=lambda each: -each.issued_at_ms)
    assert newest.renewers == ("User:console",)
    assert newest.expires_at_ms - newest.issued_at_ms < 20 * 60 * 1000
    assert first.send("POST", "/api/logout")[0] == 200
    until(lambda: len(place.tokens("User:dora")) == before + 1, "the token is left")
    assert topics_of(second) == [OURS]
    assert second.send("POST", "/api/logout")[0] == 200
    until(lambda: len(place.tokens("User:dora")) == before, "the token is left")


def test_the_end_of_the_console_expires_all_tokens(place: Place) -> None:
    """A console that ends leaves no token behind."""
    before = len(place.tokens("User:finn"))
    with console_for(place.settings()) as console:
        assert place.person(console, "finn").log_in(certificate=True)[0] == 200
        until(lambda: len(place.tokens("User:finn")) == before + 1, "no token")
    until(lambda: len(place.tokens("User:finn")) == before, "the token is left")


@pytest.mark.parametrize(
    ("name", "code", "sentence"),
    [
        ("eve", "CREATE_TOKENS_NEEDED", "`odradek acl add --user 'console' --operation create-tokens"),
        ("admin", "SUPER_USER", "who is a super user"),
        ("ANONYMOUS", "CERTIFICATE_WITHOUT_NAME", "which is no user"),
        ("dora 2", "CERTIFICATE_WITHOUT_NAME", "none of the ssl.principal.mapping.rules"),
    ],
)
def test_those_who_get_no_token_learn_why(
    console: Console, place: Place, name: str, code: str, sentence: str
) -> None:
    """One sentence says that the right to create tokens is missing, or that the name is that of a super user, or of nobody."""
    status, found, told = refused(place.person(console, name))
    assert (status, found) == (403, code)
    assert sentence in told
    assert "secret" not in told


def test_super_users_are_known_from_the_node(place: Place) -> None:
    """A console that may not ask brokers for super users knows those of its node's file."""
    made = TokenMaker({"bootstrap.servers": "127.0.0.1:1"}, frozenset({"User:root"}))
    with pytest.raises(Exception, match="super user"):
        made.create("User:root")
    made.close()


def test_a_token_is_renewed_and_one_that_is_lost_is_made_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session outlives its token's first end, and the loss of the token."""
    monkeypatch.setattr(process, "TokenMaker", partial(TokenMaker, seconds=BRIEF_SECONDS))
    with console_for(place.settings()) as console:
        dora = place.person(console, "dora")
        assert dora.log_in(certificate=True)[0] == 200
        (first,) = place.tokens("User:dora")
        until(lambda: time.time() * 1000 > first.expires_at_ms + 500, "time stands still")
        (same,) = place.tokens("User:dora")
        assert (same.token_id, same.expires_at_ms > first.expires_at_ms) == (first.token_id, True)
        assert topics_of(dora) == [OURS]
        place.expire(same)
        until(lambda: bool({each.token_id for each in place.tokens("User:dora")} - {same.token_id}), "none")
        until(lambda: dora.get("/api/topics?page=2")[0] == 200, "the session is over")
        assert topics_of(dora) == [OURS]


def test_a_session_ends_with_the_right_to_create_its_token(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a lost token must not be made again, its session ends."""
    monkeypatch.setattr(process, "TokenMaker", partial(TokenMaker, seconds=BRIEF_SECONDS))
    rule = next(each for each in place.rules() if each.resource_name == "User:finn")
    with (
        Admin(bootstrap_servers=place.plaintext) as admin,
        console_for(place.settings()) as console,
    ):
        finn = place.person(console, "finn")
        assert finn.log_in(certificate=True)[0] == 200
        (token,) = place.tokens("User:finn")
        admin.delete_acls([AclFilter(*attrs.astuple(rule))])
        try:
            place.expire(token)
            assert isinstance(console.door, Logins)
            until(lambda: console.door.statistics()["sessions"] == 0, "the session goes on")
            assert finn.get("/api/topics")[0] == 401
        finally:
            admin.create_acls([rule])


def test_a_cluster_without_tokens_says_so(tmp_path: Path) -> None:
    """Without delegation.token.secret.key on the brokers, a login by certificate names the key."""
    place, server = started(tmp_path, **{"delegation.token.secret.key": ""})
    try:
        with console_for(place.settings()) as console:
            status, code, sentence = refused(place.person(console, "dora"))
    finally:
        server.stop()
    assert (status, code) == (501, "TOKENS_DISABLED")
    assert "delegation.token.secret.key" in sentence


def test_a_wrong_password_of_the_console_is_not_the_users_fault(place: Place) -> None:
    """If the brokers refuse the console's own user, the sentence says whose keys to check."""
    settings = place.settings()
    wrong = {**settings.client, "odradek.console.tokens.odradek.sasl.password": "wrong"}
    with console_for(attrs.evolve(settings, client=wrong)) as console:
        status, code, sentence = refused(place.person(console, "dora"))
    assert (status, code) == (502, "CONSOLE_REFUSED")
    assert "odradek.console.tokens.*" in sentence


def test_settings_that_cannot_work_are_refused(place: Place) -> None:
    """The console's own user needs a listener that asks for certificates of named authorities, and brokers with SASL."""
    good = place.settings()
    assert why_refused(good) is None
    assert good.tls is not None
    no_trust = {key: value for key, value in good.tls.items() if "truststore" not in key}
    no_question = {key: value for key, value in good.tls.items() if "client.auth" not in key}
    for changes, sentence in (
        ({"tls": None}, "asks browsers for none"),
        ({"tls": no_question}, "asks browsers for none"),
        ({"tls": no_trust}, "every public authority"),
        ({"client": {**good.client, "security.protocol": "SSL"}}, "log in by SCRAM"),
    ):
        refusal = why_refused(attrs.evolve(good, **changes))  # type: ignore[arg-type] # fields of several types
        assert refusal is not None
        assert sentence in refusal
        assert "console-secret" not in refusal
