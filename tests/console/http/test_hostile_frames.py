"""The console's HTTP server survives hostile bytes, slow peers, crowds, and readers who go away: by raw sockets."""

from __future__ import annotations

import socket
import threading
import time

import attrs
import pytest

from odradek.console.http.http_server import Limits
from odradek.console.http.messages import Gone, Request, Response, Send
from tests.console.http.served import QUICK, Served, body_of, read_all, serving, status_of


async def echo(request: Request) -> Response:
    """Answer with the path and the body."""
    return Response(200, (("Content-Type", "text/plain"),), f"{request.path} {request.body!r}".encode())


def host(served: Served) -> bytes:
    return b"Host: 127.0.0.1:%d\r\n" % served.port


def test_a_request_is_answered_with_headers_that_forbid_everything_foreign() -> None:
    """Each response carries the content policy and forbids sniffing, framing and referrers."""
    with serving(echo) as served:
        response = served.get("/a/b")
    head = response.partition(b"\r\n\r\n")[0]
    assert status_of(response) == 200
    assert body_of(response) == b"/a/b b''"
    for wanted in (
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"font-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
        b"X-Content-Type-Options: nosniff",
        b"Referrer-Policy: no-referrer",
    ):
        assert wanted in head


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x00\x00\x00\x10\x00\x12\x00\x03\x00\x00\x00\x01\x00\x04test", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), 400),
        (b"GET / HTTP/9.9\r\nHost: a\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nHost: a\r\nBad header\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n", 400),
        (b"GET /%ff HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /a%00b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /?a=%0d%0aSet-Cookie:x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET http://evil.example/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /?" + b"&".join(b"a%d=1" % n for n in range(100)) + b" HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 65537\r\n\r\n", 413),
    ],
)
def test_a_hostile_head_is_refused_and_ends_its_connection(data: bytes, status: int) -> None:
    """Bytes that are no good request get a status that says so, and the connection ends."""
    with serving(echo) as served:
        assert status_of(served.ask(data)) == status
        assert status_of(served.get("/")) == 200
        assert served.log.events == []


def test_a_head_that_is_too_long_is_refused() -> None:
    """A head above 16 KiB is refused, in one header or in many, before its end arrives."""
    with serving(echo) as served:
        for more in (b"X: " + b"a" * 20_000, b"".join(b"X%d: a\r\n" % n for n in range(3000)), b""):
            begin = b"GET /" + (b"" if more else b"a" * 20_000)
            assert status_of(served.ask(begin + b" HTTP/1.1\r\n" + host(served) + more)) == 431


def test_a_body_that_is_too_long_is_refused_although_it_does_not_say_so() -> None:
    """A chunked body is counted as it comes."""
    chunk = b"4000\r\n" + b"a" * 0x4000 + b"\r\n"
    with serving(echo) as served:
        begin = b"POST / HTTP/1.1\r\n" + host(served) + b"Transfer-Encoding: chunked\r\n\r\n"
        assert status_of(served.ask(begin + 5 * chunk + b"0\r\n\r\n")) == 413
        whole = begin.replace(b"chunked", b"chunked\r\nConnection: close") + 3 * chunk + b"0\r\n\r\n"
        assert status_of(served.ask(whole)) == 200


def test_requests_in_a_row_are_answered_in_order() -> None:
    """Requests that arrive together get their answers in their order."""
    with serving(echo) as served:
        asked = [b"GET /%d HTTP/1.1\r\n%s\r\n" % (n, host(served)) for n in range(50)]
        last = b"GET /end HTTP/1.1\r\n" + host(served) + b"Connection: close\r\n\r\n"
        answer = served.ask(b"".join([*asked, last]))
    places = [answer.index(b"\r\n\r\n/%d b''" % n) for n in range(50)]
    assert places == sorted(places)
    assert answer.endswith(b"/end b''")


def test_a_head_that_trickles_in_ends_in_time() -> None:
    """A request that is not complete in time is refused, however steadily its bytes come (slowloris)."""
    with serving(echo, QUICK) as served, served.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n" + host(served))
        began = time.monotonic()
        answered = b""
        connection.settimeout(0.05)
        while not answered and time.monotonic() < began + 20:
            try:
                answered = connection.recv(4096)
            except TimeoutError:
                connection.sendall(b"X: y\r\n")
        assert status_of(answered) == 408


def test_a_silent_connection_ends() -> None:
    """A connection without a request is closed after a while, and so is one after its last request."""
    with serving(echo, QUICK) as served:
        with served.connect() as connection:
            assert read_all(connection) == b""
        with served.connect() as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n" + host(served) + b"\r\n")
            assert status_of(read_all(connection)) == 200


def test_a_crowd_of_silent_connections_keeps_nobody_out() -> None:
    """A new connection takes the place of the oldest silent one."""
    limits = Limits(connections_max=4)
    with serving(echo, limits) as served:
        silent = [served.connect() for _ in range(12)]
        try:
            assert status_of(served.get("/")) == 200
            assert served.server.statistics()["connections"] <= 4
            assert read_all(silent[0]) == b""
        finally:
            for each in silent:
                each.close()


def test_a_bug_ends_only_its_connection() -> None:
    """An exception in an answer is logged, and the next request is served."""

    async def answer(request: Request) -> Response:
        if request.path == "/bug":
            raise ZeroDivisionError
        return await echo(request)

    with serving(answer) as served:
        assert served.get("/bug") == b""
        assert status_of(served.get("/")) == 200
        assert served.log.events == ["console.bug"]


@attrs.define
class Streams:
    """A response that streams without an end, and what became of it."""

    ended: threading.Event = attrs.field(factory=threading.Event)
    chunk: bytes = b"x" * 65536

    async def answer(self, request: Request) -> Response:
        async def run(send: Send, gone: Gone) -> None:
            while not gone.is_set:
                await send(self.chunk)

        return Response(200, stream=run, close=self.ended.set)


def test_a_stream_whose_reader_has_gone_ends_at_once() -> None:
    """When the reader closes, the stream ends, though nobody writes to it just now."""
    streams = Streams()
    with serving(streams.answer) as served:
        connection = served.connect()
        connection.sendall(b"GET / HTTP/1.1\r\n" + host(served) + b"\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert not streams.ended.is_set()
        connection.close()
        assert streams.ended.wait(10)


def test_a_reader_that_takes_nothing_is_dropped() -> None:
    """A stream whose reader takes no byte for a while ends with its connection."""
    streams = Streams()
    with serving(streams.answer, QUICK) as served, served.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(b"GET / HTTP/1.1\r\n" + host(served) + b"\r\n")
        assert streams.ended.wait(10)


def test_a_request_during_a_stream_is_not_answered() -> None:
    """Bytes that arrive while a stream runs are dropped, since the connection ends with the stream."""
    streams = Streams()
    with serving(streams.answer) as served, served.connect() as connection:
        connection.sendall((b"GET / HTTP/1.1\r\n" + host(served) + b"\r\n") * 3)
        data = b""
        while len(data) < 1 << 20:
            data += connection.recv(65536)
        assert data.count(b"HTTP/1.1") == 1


def test_head_has_no_body_and_http_1_0_is_served() -> None:
    """HEAD gets the head alone, and a client of HTTP/1.0 gets an answer and the end of its connection."""
    with serving(echo) as served:
        response = served.ask(b"HEAD / HTTP/1.1\r\n" + host(served) + b"Connection: close\r\n\r\n")
        assert (status_of(response), body_of(response)) == (200, b"")
        assert status_of(served.ask(b"GET / HTTP/1.0\r\n" + host(served) + b"\r\n")) == 200
