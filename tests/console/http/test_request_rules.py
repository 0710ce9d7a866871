"""Which requests the console answers: names of hosts, methods, and where a request comes from."""

from __future__ import annotations

import pytest

from odradek.console.http.messages import BadTarget, Headers, Request, parse_target
from odradek.console.http.request_rules import HostRules, judge_request

LOCAL = HostRules.of_listener("127.0.0.1")
OPEN = HostRules.of_listener("", ["Console.Example"])


def judged(
    *headers: tuple[str, str],
    method: str = "GET",
    target: str = "/api/overview",
    host: str = "127.0.0.1:9644",
    rules: HostRules = LOCAL,
    is_encrypted: bool = False,
    body: bytes = b"",
) -> int:
    """Return the status of a refusal, or 200."""
    given: Headers = [("host", host), *headers] if host else headers
    path, parts, words = parse_target(target)
    request = Request(method, target, path, parts, words, given, "127.0.0.1", is_encrypted, body)
    refusal = judge_request(request, rules)
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    "host", ["127.0.0.1:9644", "localhost:9644", "LOCALHOST", "[::1]:9644", "localhost.:8080", "[0:0::1]"]
)
def test_a_loopback_listener_is_known_by_its_local_names(host: str) -> None:
    """The port does not matter, because a tunnel changes it."""
    assert judged(host=host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:9644",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.0.0.1:9644",
        "",
        "127.0.0.1:9644, evil.example",
        "127.0.0.1@evil.example",
        "evil.example#127.0.0.1",
        "127.0.0.1:port",
        "[evil]",
        "127.1",
        " 127.0.0.1",
        "127.0.0.1/",
    ],
)
def test_a_name_of_another_site_is_refused(host: str) -> None:
    """A page of another site that lets its name lead here (DNS rebinding) gets nothing."""
    assert judged(host=host) == 421
    assert judged(host=host, target="/") == 421


def test_several_host_headers_are_refused() -> None:
    """Two hosts in one request are no host."""
    assert judged(("host", "127.0.0.1")) == 421


def test_an_open_listener_is_known_by_addresses_and_by_given_names() -> None:
    """On every interface, any address in figures is right, and of names only those that the operator gives."""
    for host in (
        "10.0.0.1",
        "192.168.1.1:9644",
        "[2001:db8::1]:9644",
        "console.example",
        "CONSOLE.EXAMPLE.:443",
    ):
        assert judged(host=host, rules=OPEN) == 200
    for host in ("evil.example", "console.example.evil", "10.0.0.1.evil"):
        assert judged(host=host, rules=OPEN) == 421


@pytest.mark.parametrize(
    "method", ["HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "POST", "get"]
)
def test_only_get_is_answered(method: str) -> None:
    """Every other method is refused, with POST for all but login and logout."""
    assert judged(method=method) == 405


def test_login_and_logout_take_post_alone() -> None:
    """GET of them is refused."""
    origin = ("origin", "http://127.0.0.1:9644")
    for target in ("/api/login", "/api/logout"):
        assert judged(target=target) == 405
        assert judged(origin, target=target, method="POST") == 200


def test_a_get_with_a_body_is_refused() -> None:
    """A body without a meaning could hide another request from a proxy."""
    assert judged(body=b"x") == 400


@pytest.mark.parametrize(
    ("site", "mode", "dest", "target", "status"),
    [
        ("same-origin", "cors", "empty", "/api/overview", 200),
        ("none", "navigate", "document", "/api/overview", 200),
        ("none", "navigate", "document", "/topics/a", 200),
        ("cross-site", "navigate", "document", "/topics/a", 200),
        ("same-site", "navigate", "document", "/", 200),
        ("cross-site", "navigate", "document", "/api/overview", 403),
        ("cross-site", "navigate", "iframe", "/", 403),
        ("cross-site", "no-cors", "script", "/code/main.js", 403),
        ("same-site", "no-cors", "image", "/icon.svg", 403),
        ("cross-site", "cors", "empty", "/api/overview", 403),
        ("same-site", "cors", "empty", "/api/overview", 403),
        ("nonsense", "cors", "empty", "/api/overview", 403),
    ],
)
def test_what_a_browser_says_about_a_request_decides(
    site: str, mode: str, dest: str, target: str, status: int
) -> None:
    """Only a link to a page may come from another site."""
    headers = [("sec-fetch-site", site), ("sec-fetch-mode", mode), ("sec-fetch-dest", dest)]
    assert judged(*headers, target=target) == status


def test_an_origin_must_be_the_console_itself() -> None:
    """A foreign origin, `null`, another port or another scheme is refused."""
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9645", "http://127.0.0.1", "file://"):
        assert judged(("origin", origin)) == 403
    assert judged(("origin", "http://127.0.0.1:9644")) == 200
    assert judged(("origin", "https://127.0.0.1:9644")) == 200
    assert judged(("origin", "http://127.0.0.1:9644"), is_encrypted=True) == 403


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("origin", "http://evil.example")],
        [("origin", "null")],
        [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")],
        [("sec-fetch-site", "none")],
        [("sec-fetch-site", "same-site")],
        [("sec-fetch-site", "same-origin"), ("origin", "http://evil.example")],
        [("sec-fetch-site", "cross-site"), ("origin", "http://127.0.0.1:9644")],
    ],
)
def test_a_post_must_say_that_it_comes_from_the_console(headers: list[tuple[str, str]]) -> None:
    """A form of another site, or a request without an origin, is refused."""
    assert judged(*headers, method="POST", target="/api/login") == 403
    assert judged(*headers, method="POST", target="/api/logout") == 403


@pytest.mark.parametrize(
    "target", ["", "a", "*", "http://a/", "/%ff", "/%00", "/a%0ab", "/?a=%00", "/?a=%ff", "/?a", "/?a=1&&b"]
)
def test_an_unreadable_address_is_refused(target: str) -> None:
    """An address in UTF-8 without control characters is the only kind."""
    with pytest.raises(BadTarget):
        parse_target(target)


def test_an_encoded_slash_stays_in_its_part() -> None:
    """A name with a slash is one part of the path."""
    assert parse_target("/api/topics/a%2Fb/configs") == (
        "/api/topics/a/b/configs",
        ("api", "topics", "a/b", "configs"),
        [],
    )
