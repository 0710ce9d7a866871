"""Serves the metrics page over HTTP/1.1, on a listener of its own. PORTED.

One request per connection, GET and HEAD of `/metrics` and nothing else. Everything is bounded: connections, the bytes
of a request, the seconds that a peer may take. A peer's mistake ends its own connection at most.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from odradek.env.ports import Clock, Conn, ConnectionLost, Listener, Log, TaskGroup
from odradek.node.metrics.metrics_page import LoopLateness
from odradek.node.metrics.metrics_text import CONTENT_TYPE
from odradek.serving.api_table import LATENCY_BOUNDS_SECONDS

CONNECTIONS_MAX = 32
REQUEST_BYTES_MAX = 16 * 1024
CONNECTION_SECONDS_MAX = 10.0
LATENESS_INTERVAL_SECONDS = 0.25

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
}


class MetricsServer:
    """Answers scrapes with what `render` gives."""

    def __init__(
        self, listener: Listener, *, clock: Clock, tasks: TaskGroup, log: Log, render: Callable[[], bytes]
    ) -> None:
        self._listener = listener
        self._clock = clock
        self._tasks = tasks
        self.log = log
        self._render = render
        self._open: dict[Conn, None] = {}

    @property
    def port(self) -> int:
        return self._listener.port

    async def accept_loop(self) -> None:
        """Start one task per connection until the listener closes."""
        while True:
            try:
                conn = await self._listener.accept()
            except ConnectionLost:
                return
            if len(self._open) >= CONNECTIONS_MAX:
                conn.close()
                continue
            self._open[conn] = None
            self._tasks.start_soon(self._serve, conn, name="metrics")

    def close(self) -> None:
        """Stop accepting and end every connection."""
        self._listener.close()
        for conn in list(self._open):
            conn.close()

    async def _serve(self, conn: Conn) -> None:
        try:
            with self._clock.timeout_at(self._clock.monotonic() + CONNECTION_SECONDS_MAX):
                head = await _read_head(conn)
                await _send(conn, self._answer(head))
        except ConnectionLost:
            return
        finally:
            conn.close()
            self._open.pop(conn, None)

    def _answer(self, head: bytes | None) -> bytes:
        """The whole response to a request's head (None: it was too long)."""
        if head is None:
            return _response(431, b"too long\n")
        words = head.partition(b"\n")[0].split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response(400, b"this port speaks HTTP/1.1\n")
        method, target, _ = words
        if method not in (b"GET", b"HEAD"):
            return _response(405, b"only GET and HEAD\n", "Allow: GET, HEAD\r\n")
        if target.partition(b"?")[0] != b"/metrics":
            return _response(404, b"the metrics are at /metrics\n", is_head=method == b"HEAD")
        try:
            page = self._render()
        except Exception:
            # A figure that cannot be read must not end the node that it tells of.
            self.log.exception("metrics.bug")
            return _response(500, b"see the node's log\n")
        return _response(200, page, content_type=CONTENT_TYPE, is_head=method == b"HEAD")


async def _read_head(conn: Conn) -> bytes | None:
    """The request up to its empty line; None when it is too long. Raises `ConnectionLost` at the end of the stream."""
    head = bytearray()
    buffer = memoryview(bytearray(4096))
    while b"\r\n\r\n" not in head and b"\n\n" not in head:
        if len(head) > REQUEST_BYTES_MAX:
            return None
        await conn.readable()
        count = conn.recv_into(buffer)
        if count == 0:
            raise ConnectionLost("left in the middle of a request")
        head += buffer[: count or 0]
        if head and not head[:1].isalpha():
            # No request of HTTP, so no empty line will come. A client of the log in the wrong place is told at once.
            break
    return bytes(head)


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


async def watch_loop(clock: Clock, lateness: LoopLateness) -> None:
    """Measure how late the event loop wakes a task that is due, four times a second, until cancelled."""
    while True:
        due = clock.monotonic() + LATENESS_INTERVAL_SECONDS
        await clock.sleep_until(due)
        late = max(0.0, clock.monotonic() - due)
        lateness.counts[bisect_left(LATENCY_BOUNDS_SECONDS, late)] += 1
        lateness.seconds += late
