"""Requests and responses of HTTP, as the console uses them. PURE."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import parse_qsl, unquote

import attrs

__all__ = [
    "BadTarget",
    "ClientCertificate",
    "Gone",
    "Headers",
    "Request",
    "Response",
    "Send",
    "Stream",
    "parse_target",
]

Headers = Sequence[tuple[str, str]]
Send = Callable[[bytes], Awaitable[None]]
"""Sends bytes of a body. It waits while the peer does not read, and raises `ConnectionLost`."""
_WORDS_MAX = 64


class Gone:
    """Whether the peer of a stream has gone, or the stream has ended."""

    def __init__(self) -> None:
        self.is_set = False
        self._actions: list[Callable[[], None]] = []

    def call(self, action: Callable[[], None]) -> None:
        """Call `action` on the event loop when the peer has gone; at once, if it has gone already."""
        if self.is_set:
            action()
        else:
            self._actions.append(action)

    def set(self) -> None:
        """Note that the peer has gone. A second call has no effect."""
        if not self.is_set:
            self.is_set = True
            for action in self._actions:
                action()


Stream = Callable[[Send, Gone], Awaitable[None]]
"""The function behind a response that streams."""


class BadTarget(Exception):
    """The address in a request cannot be read. The text says why."""


@attrs.frozen(kw_only=True)
class ClientCertificate:
    """The certificate that a browser has shown in the TLS handshake. TLS has verified it."""

    name: str
    """Its distinguished name, in Java's format."""
    principal: str | None
    """The principal that the listener's rules make of the name; None if no rule matches."""
    fingerprint: bytes
    """The SHA-256 of the certificate."""
    ends_ms: int
    """The last moment at which it is valid, in milliseconds since 1970."""


@attrs.frozen
class Request:
    """A request whose head and body have arrived. Names of headers are in small letters."""

    method: str
    target: str
    path: str
    """The path, decoded. A slash within a part looks like one between parts here."""
    parts: Sequence[str]
    """The parts of the path between slashes, each decoded by itself."""
    words: Sequence[tuple[str, str]]
    """The pairs of the query."""
    headers: Headers
    peer: str
    """The address of the client."""
    is_encrypted: bool = False
    body: bytes = b""
    certificate: ClientCertificate | None = None
    """The client's certificate on this connection; None if it has shown none."""

    def header(self, name: str) -> str | None:
        """Return the value of a header; None if it is missing. Values of several such headers are joined by commas."""
        found = [value for key, value in self.headers if key == name]
        return ", ".join(found) if found else None

    def cookie(self, name: str) -> str | None:
        """Return the value of the first cookie of this name."""
        for key, value in self.headers:
            if key == "cookie":
                for pair in value.split(";"):
                    left, _, right = pair.strip().partition("=")
                    if left == name:
                        return right
        return None


@attrs.frozen
class Response:
    """A response. With `stream`, the body is sent by this function, and the connection closes after it."""

    status: int
    headers: Headers = ()
    body: bytes = b""
    stream: Stream | None = None
    close: Callable[[], None] | None = None
    """Called when a response that streams has ended, or could not begin."""


def parse_target(target: str) -> tuple[str, Sequence[str], Sequence[tuple[str, str]]]:
    """Split the address of a request into its path, the parts of the path, and the words of its query.

    Raises `BadTarget` for anything but a path in UTF-8, and for control characters.
    """
    path, _, query = target.partition("?")
    if not path.startswith("/"):
        raise BadTarget("the address is no path")
    try:
        parts = tuple(unquote(each, errors="strict") for each in path[1:].split("/"))
        words = parse_qsl(
            query,
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=_WORDS_MAX,
        )
    except (UnicodeDecodeError, ValueError) as error:
        raise BadTarget("the address is not readable") from error
    if any(not _is_plain(text) for text in (*parts, *(text for word in words for text in word))):
        raise BadTarget("the address has control characters")
    return "/" + "/".join(parts), parts, words


def _is_plain(text: str) -> bool:
    return all(each >= " " and each != "\x7f" for each in text)
