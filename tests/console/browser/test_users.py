"""What users of a cluster with logins and rules see: all, a part, or nothing, as the brokers decide."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import attrs
import pytest
from playwright.sync_api import Page, expect

from testkit.processes import free_ports
from tests.cli.running import odradek_here
from tests.console.browser.chromium import faults_of, overflow_of
from tests.console.browser.running_console import console
from tests.security.secured_node import SCRAM_USERS, make_certificates, properties, start

pytestmark = pytest.mark.long

Visit = Callable[..., Page]
PATIENCE_MS = 60_000
PAGES = [
    "/", "/brokers", "/topics", "/topics/secrets", "/messages?topic=secrets", "/groups", "/groups/nobody", "/moves",
    "/transactions", "/clients", "/access", "/access?tab=users", "/access?tab=quotas", "/history",
]  # fmt: skip


@attrs.frozen
class Guarded:
    """A node with an authorizer, and a console for it."""

    plaintext: str
    url: str


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    ports = free_ports(6)
    make_certificates(directory)
    (directory / "jwks.json").write_text('{"keys": []}')
    settings = properties(directory, ports) | {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    users = [f'SCRAM-SHA-512=[name="{name}",password="{word}"]' for name, word in SCRAM_USERS.items()]
    server = start(directory, settings, users)
    client = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(directory / "authority.pem"),
        "ssl.truststore.type": "PEM",
    }
    try:
        plaintext, *_, encrypted = (f"127.0.0.1:{port}" for port in ports)
        for words in (
            "topic create orders --partitions 3",
            "topic create secrets --partitions 1",
            "acl add --user alice --operation read --topic orders",
            "acl add --user alice --operation describe --cluster",
        ):
            done = odradek_here(*words.split(), bootstrap=plaintext)
            assert done.code == 0, done.err
        odradek_here("produce", "orders", bootstrap=plaintext, stdin=b"hello\n")
        with console(encrypted, client) as url:
            yield Guarded(plaintext, url)
    finally:
        server.stop()


def log_in(page: Page, user: str, password: str) -> None:
    page.get_by_label("User", exact=True).fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def test_a_stranger_sees_the_login_alone(visit: Visit, guarded: Guarded) -> None:
    """Every page leads to the login; a wrong password says so and keeps the name."""
    page = visit(f"{guarded.url}/topics")
    page.wait_for_url("**/login?next=%2Ftopics")
    log_in(page, "alice", "wrong")
    page.get_by_role("alert").wait_for(timeout=PATIENCE_MS)
    expect(page.get_by_label("User", exact=True)).to_have_value("alice")
    assert faults_of(page) == []


def test_a_user_sees_what_the_rules_allow(visit: Visit, guarded: Guarded) -> None:
    """A user who may read one topic sees this topic, its records, and no other; who has logged in stands in the frame."""
    page = visit(f"{guarded.url}/topics")
    log_in(page, "alice", "alice-secret")
    page.get_by_role("link", name="orders").wait_for(timeout=PATIENCE_MS)
    expect(page.get_by_role("link", name="secrets")).to_have_count(0)
    expect(page.locator("#side").get_by_text("alice")).to_be_visible()
    page.goto(f"{guarded.url}/messages?topic=orders")
    page.get_by_text("hello").first.wait_for(timeout=PATIENCE_MS)
    page.goto(f"{guarded.url}/messages?topic=secrets")
    page.locator("main .failure, main .notice").first.wait_for(timeout=PATIENCE_MS)
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/login")
    page.goto(f"{guarded.url}/topics")
    page.wait_for_url("**/login?next=%2Ftopics")


@pytest.mark.parametrize("path", PAGES)
def test_a_user_without_rights_is_told_so(visit: Visit, guarded: Guarded, path: str) -> None:
    """Each page works for a user without any right, and keeps from him what the brokers keep."""
    page = visit(f"{guarded.url}/login?next={path.replace('?', '%3F').replace('=', '%3D')}")
    log_in(page, "bob", "bob-secret")
    page.wait_for_url(re.compile(re.escape(guarded.url + path)), timeout=PATIENCE_MS)
    page.wait_for_selector(
        "main:not([aria-busy]) .empty, main .failure, main .notice, main .tiles, main .answer",
        timeout=PATIENCE_MS,
    )
    drawn = page.locator("main").inner_text()
    assert "orders" not in drawn
    assert "bug" not in drawn
    assert faults_of(page) == []
    assert overflow_of(page) <= 0
