"""Which requests the console answers at all: methods, the header Host, and where a request comes from. PURE.

* The header Host must have an address or a name of the listener, or a name of `odradek.console.hosts`. A page of
  another site can let its own name lead to this address (DNS rebinding). Its requests then have that name.
* A browser says where a request comes from (Sec-Fetch-Site, Origin). Requests of other sites are refused, except that
  a link may lead to a page. A page has no data. They come by a request of the page itself.
* A request that changes something (login, logout) must say that it comes from the console.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address

import attrs

from odradek.console.http.messages import Request
from odradek.node.configuration.console_config import is_loopback

__all__ = ["POSTED", "SECURITY_HEADERS", "HostRules", "Refusal", "judge_request"]

SECURITY_HEADERS = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "font-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("X-Frame-Options", "DENY"),
)
"""Headers of every response."""
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?\Z")
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
POSTED = ("/api/login", "/api/logout")


@attrs.frozen
class Refusal:
    """A request that is not answered: HTTP's status, a stable code, and the reason in a sentence."""

    status: int
    code: str
    sentence: str


@attrs.frozen
class HostRules:
    """The hosts by which browsers may reach a listener. Ports do not matter, since tunnels change them."""

    names: frozenset[str]
    has_any_address: bool
    """True if the header Host may have any address in figures, because the listener is open on every interface. A name of
    another site is none.
    """

    @classmethod
    def of_listener(cls, host: str, more: Sequence[str] = ()) -> HostRules:
        """Make the rules of a listener at `host` (empty: every interface) and the names that the operator adds."""
        names = {_normal(each) for each in more}
        if host in ("", "0.0.0.0", "::"):
            return cls(frozenset({*names, *_LOCAL_NAMES}), True)
        if is_loopback(host):
            names |= {*_LOCAL_NAMES}
        return cls(frozenset({*names, _normal(host)}), False)

    def allows(self, header: str) -> bool:
        """True if a browser may reach the console by this value of the header Host."""
        match = _HOST.match(header)
        if match is None:
            return False
        name = _normal(match["six"] or match["name"])
        return name in self.names or (self.has_any_address and _is_address(name))


def _normal(host: str) -> str:
    try:
        return str(ip_address(host))
    except ValueError:
        return host.lower().rstrip(".")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def judge_request(request: Request, hosts: HostRules) -> Refusal | None:
    """Return why a request is refused; None if it may be answered."""
    found = [value for name, value in request.headers if name == "host"]
    if len(found) != 1 or not hosts.allows(found[0]):
        return Refusal(
            421,
            "WRONG_HOST",
            "the console is not known by this name: reach it by its address, or add the name to odradek.console.hosts",
        )
    is_post = request.method == "POST"
    if request.method != "GET" and not (is_post and request.path in POSTED):
        return Refusal(405, "METHOD_NOT_ALLOWED", "the console only answers GET")
    if not is_post and request.path in POSTED:
        return Refusal(405, "METHOD_NOT_ALLOWED", "this address only takes POST")
    if not is_post and request.body:
        return Refusal(400, "INVALID_REQUEST", "a GET has no body")
    if not _is_from_here(request, found[0], must_say=is_post):
        return Refusal(403, "CROSS_SITE", "the request comes from another site")
    return None


def _is_from_here(request: Request, host: str, *, must_say: bool) -> bool:
    scheme = "https" if request.is_encrypted else "http"
    origin, site = request.header("origin"), request.header("sec-fetch-site")
    if origin is not None and origin.lower() not in (f"{scheme}://{host}".lower(), f"https://{host}".lower()):
        # A proxy that adds TLS keeps the host, and the browser then sends https.
        return False
    if site is None:
        return origin is not None or not must_say
    if site == "same-origin" or (site == "none" and not must_say):
        return True
    is_link = (
        request.header("sec-fetch-mode") == "navigate" and request.header("sec-fetch-dest") == "document"
    )
    return is_link and not must_say and origin is None and not request.path.startswith("/api")
