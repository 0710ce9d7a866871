"""Serves the metrics page over HTTP/1.1, on a listener of its own with limits. PORTED.

It accepts one request per connection, GET or HEAD of `/metrics`, `/healthz` or `/ready`. The number of connections, the
bytes of a request and the time for it are limited. A peer's mistake ends only its own connection.

If there are too many connections, the address with the most connections loses its oldest connection without a
request. So a stranger who opens many connections does not keep the scraper out.

The page is made when a request has arrived (`page_maker`). `/healthz` and `/ready` are answered before any login, because
a load balancer has none. Their answers name only the state of this node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from odradek.env.ports import Clock, Conn, ConnectionLost, Listener, Log, TaskGroup
from odradek.node.configuration.metrics_config import METRICS
from odradek.node.connections.entrance import NotAuthenticated
from odradek.node.metrics.page.page_forms import PageForm, accepts_gzip, prefers_openmetrics
from odradek.node.metrics.page.page_guard import PageGuard
from odradek.node.metrics.page.page_logins import Answer
from odradek.node.metrics.page.page_maker import PageMaker
from odradek.security.audit.auditor import TLS

CONNECTIONS_MAX = 32
REQUEST_BYTES_MAX = 16 * 1024
ASK_SECONDS_MAX = 3.0
"""The maximum number of seconds from the accept, or from the end of the handshake, until the request is
complete.
"""
CONNECTION_SECONDS_MAX = 10.0

_HEAD_END = re.compile(rb"\r?\n\r?\n")

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_REFUSALS = {
    Answer.UNKNOWN: (b"log in as a user of the cluster\n", 'WWW-Authenticate: Basic realm="odradek"\r\n'),
    Answer.FORBIDDEN: (b"this page needs the right DESCRIBE on the cluster\n", ""),
    Answer.TOO_MANY: (b"too many passwords were tried\n", "Retry-After: 5\r\n"),
}


class MetricsServer:
    """Answers HTTP requests with pages of metrics, and with the health of the node."""

    def __init__(
        self,
        listener: Listener,
        *,
        clock: Clock,
        tasks: TaskGroup,
        log: Log,
        pages: PageMaker,
        unready: Callable[[], str | None] = lambda: None,
        guard: PageGuard | None = None,
    ) -> None:
        """Serve the pages of `pages`. `unready` returns why the node is not ready, or None if it is."""
        self._listener = listener
        self._clock = clock
        self._tasks = tasks
        self.log = log
        self._pages = pages
        self._unready = unready
        self._guard = guard or PageGuard()
        self._open: dict[str, dict[Conn, None]] = {}
        """The open connections by address. If there are too many, an address loses its connections in this order."""

    @property
    def port(self) -> int:
        return self._listener.port

    async def accept_loop(self) -> None:
        """Accept connections, each with a task of its own, until the listener closes."""
        while True:
            try:
                conn = await self._listener.accept()
            except ConnectionLost:
                return
            encryption = self._guard.encryption
            if encryption is not None and not encryption.has_room(conn.peer_host):
                conn.close()
                continue
            self._make_room()
            self._open.setdefault(conn.peer_host, {})[conn] = None
            self._tasks.start_soon(self._serve, conn, name="metrics")

    def _make_room(self) -> None:
        if sum(map(len, self._open.values())) >= CONNECTIONS_MAX:
            most = max(self._open.values(), key=len)
            conn = next(iter(most))
            self._forget(conn)
            conn.close()

    def _forget(self, conn: Conn) -> None:
        of_host = self._open.get(conn.peer_host, {})
        of_host.pop(conn, None)
        if not of_host:
            self._open.pop(conn.peer_host, None)

    def _has_asked(self, conn: Conn) -> None:
        """Mark that a connection has sent its request. If there are too many connections, those without a
        request are closed before this one.
        """
        of_host = self._open.get(conn.peer_host, {})
        if conn in of_host:
            del of_host[conn]
            of_host[conn] = None

    def close(self) -> None:
        """Stop accepting connections, and end all open connections."""
        self._listener.close()
        for conn in [each for of_host in self._open.values() for each in of_host]:
            conn.close()

    async def _serve(self, conn: Conn) -> None:
        try:
            with self._clock.timeout_at(self._clock.monotonic() + CONNECTION_SECONDS_MAX):
                await self._exchange(conn)
        except ConnectionLost:
            return
        except Exception:
            # A bug in one exchange must not end the node.
            self.log.exception("metrics.bug")
        finally:
            conn.close()
            self._forget(conn)

    async def _exchange(self, conn: Conn) -> None:
        """Read one request and answer it. Raises `ConnectionLost`."""
        secured, principal = conn, None
        host, encryption = conn.peer_host, self._guard.encryption
        if encryption is not None:
            try:
                secured, principal, _ = await encryption.handshake(conn)
            except NotAuthenticated as error:
                if self._guard.auditor is not None:
                    self._guard.auditor.login_failed(
                        METRICS, host, None, TLS, str(error), tls_subject=error.tls_subject
                    )
                return
        try:
            head: bytes | None = b""
            with self._clock.timeout_at(self._clock.monotonic() + ASK_SECONDS_MAX):
                head = await _read_head(secured)
            if head == b"":
                return
            self._has_asked(conn)
            await _send(secured, await self._answer(head, host, principal))
        finally:
            secured.close()

    async def _answer(self, head: bytes | None, host: str, principal: str | None) -> bytes:
        """Make the whole response to a request; `head` is None if the request was too long."""
        if head is None:
            return _response(431, b"too long\n")
        lines = head.split(b"\n")
        words = lines[0].split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response(400, b"this port speaks HTTP/1.1\n")
        method, target, _ = words
        if method not in (b"GET", b"HEAD"):
            return _response(405, b"only GET and HEAD\n", "Allow: GET, HEAD\r\n")
        is_head = method == b"HEAD"
        path = target.partition(b"?")[0]
        if path == b"/healthz":
            return _response(200, b"ok\n", is_head=is_head)
        if path == b"/ready":
            reason = self._unready()
            status, said = (200, "ready") if reason is None else (503, reason)
            return _response(status, f"{said}\n".encode(), is_head=is_head)
        if path != b"/metrics":
            return _response(404, b"the metrics are at /metrics\n", is_head=is_head)
        if self._guard.logins is not None:
            answer = await self._guard.logins.check(_header(lines, b"authorization"), host, principal)
            if answer is not Answer.WELCOME:
                body, more = _REFUSALS[answer]
                return _response(answer.value, body, more, is_head=is_head)
        return await self._page_answer(lines, target, is_head)

    async def _page_answer(self, lines: Sequence[bytes], target: bytes, is_head: bool) -> bytes:
        """Make the response with a page, in the form that the request's headers and its query ask for."""
        if b"names=kafka" in target.partition(b"?")[2].split(b"&"):
            form = PageForm(has_kafka_names=True)
        else:
            form = PageForm(is_openmetrics=prefers_openmetrics(_all(lines, b"accept")))
        page = await self._pages.page(form)
        if page is None:
            return _response(500, b"see the node's log\n", is_head=is_head)
        body, more = page.text, "Vary: Accept, Accept-Encoding\r\n"
        if accepts_gzip(_all(lines, b"accept-encoding")):
            body, more = await self._pages.compress(page), f"Content-Encoding: gzip\r\n{more}"
        return _response(200, body, more, content_type=form.content_type, is_head=is_head)


def _header(lines: Sequence[bytes], wanted: bytes) -> bytes | None:
    """Return the value of a header; None if it is missing or occurs several times."""
    found = [
        value for name, colon, value in (line.partition(b":") for line in lines[1:]) if name.lower() == wanted
    ]
    return found[0].strip() if len(found) == 1 else None


def _all(lines: Sequence[bytes], wanted: bytes) -> str:
    """Return all values of a header, joined by commas."""
    pairs = (line.partition(b":") for line in lines[1:])
    return ",".join(value.decode("latin-1").strip() for name, _, value in pairs if name.lower() == wanted)


async def _read_head(conn: Conn) -> bytes | None:
    """Read the request without its first empty line and what follows; None when it is too long. Raises `ConnectionLost` at the end of the
    stream.
    """
    head = bytearray()
    buffer = memoryview(bytearray(4096))
    searched = 0
    while (end := _HEAD_END.search(head, searched)) is None:
        # An empty line has at most four bytes, so that the end of what was searched may hold its beginning.
        searched = max(0, len(head) - 3)
        if len(head) > REQUEST_BYTES_MAX:
            return None
        await conn.readable()
        count = conn.recv_into(buffer)
        if count == 0:
            raise ConnectionLost("the client closed the connection in the middle of a request")
        head += buffer[: count or 0]
        if head and not head[:1].isalpha():
            # These bytes are no HTTP request, perhaps from a Kafka client at the wrong port. An empty line will never
            # come, so refuse the peer at once.
            break
    return bytes(head if end is None else head[: end.start()])


async def _send(conn: Conn, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[conn.send([left]) :]
        if left:
            await conn.writable()


def _response(
    status: int, body: bytes, more: str = "", *, content_type: str = "text/plain", is_head: bool = False
) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
    )
    return head.encode() + (b"" if is_head else body)
