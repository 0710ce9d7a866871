"""Serves HTTP/1.1 on a listener, with limits for everything that a peer may send or leave unread. PORTED.

Theory of operation
-------------------
Each connection has a task. It feeds received bytes to an h11 state machine, which knows HTTP. It answers one request at
a time, in order. A request that is late, too long, or not HTTP
ends the connection, after a response that says why.

If there are `connections_max` connections, a new one replaces the oldest idle connection of the network that has the
most. (A network is an IPv4 address, or the first 64 bits of an IPv6 address.) If none is idle, the oldest
connection that sends a whole response ends. So a stranger who opens many connections does not keep others out. If all connections
stream, the new one is closed. For at most `busy_max` connections of a network, a response is made at once; a further request
gets 503. (The functions that make responses limit streams.)

A response that streams ends with its connection. While it runs, a second task reads: when the peer has closed its end,
the stream's task is cancelled at once. A peer that takes no bytes for `stalled_seconds_max` loses its connection. So
does a peer below `slowest_bytes_per_second`, after as many seconds.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Protocol

import attrs
import h11

from odradek.console.http.messages import (
    BadTarget,
    ClientCertificate,
    Gone,
    Headers,
    Request,
    Response,
    Stream,
    parse_target,
)
from odradek.env.ports import Clock, Conn, ConnectionLost, Listener, Log, TaskGroup
from odradek.security.handshakes import network_of

__all__ = ["Encryption", "HttpServer", "Limits"]

RECEIVE_BYTES = 16 * 1024
LINGER_BYTES_MAX = 256 * 1024
_REFUSED: Mapping[int, str] = {
    400: "this is no request of HTTP/1.1",
    408: "the request did not arrive in time",
    413: "the body is too long",
    414: "the address is too long",
    431: "the head is too long",
    503: "too many requests at once from this address: try again in a moment",
    501: "this server does not read such a request",
    505: "this server speaks HTTP/1.1",
}


class Encryption(Protocol):
    """The TLS of a listener."""

    async def handshake(self, conn: Conn) -> tuple[Conn, ClientCertificate | None]:
        """Do the handshake. Return the encrypted connection, and the client's certificate. Raises `ConnectionLost`."""


@attrs.frozen
class Limits:
    """The limits of a server, in bytes and seconds."""

    connections_max: int = 64
    head_bytes_max: int = 16 * 1024
    body_bytes_max: int = 64 * 1024
    request_seconds_max: float = 10.0
    """The time for the handshake, and from the first byte of a request to its last."""
    idle_seconds_max: float = 60.0
    """The time that a connection may wait for its next request."""
    stalled_seconds_max: float = 30.0
    """The time in which a peer takes no byte of a response."""
    slowest_bytes_per_second: float = 16 * 1024.0
    """The slowest peer that gets a whole response, or a piece of a stream, after `stalled_seconds_max`."""
    busy_max: int = 16
    """The connections of one network for which a response is made at once, without those that are sent one."""
    linger_seconds_max: float = 1.0
    """The time for which a refused peer may send on, so that it reads why."""


@attrs.define(eq=False)
class _Peer:
    """An open connection."""

    conn: Conn
    host: str
    network: str
    is_busy: bool = False
    is_sending: bool = False
    """True while it sends a response that is no stream."""
    is_streaming: bool = False


class HttpServer:
    """Answers requests of HTTP/1.1 by one function."""

    def __init__(
        self,
        listener: Listener,
        answer: Callable[[Request], Awaitable[Response]],
        *,
        clock: Clock,
        tasks: TaskGroup,
        log: Log,
        encryption: Encryption | None = None,
        limits: Limits | None = None,
        always: Headers = (),
    ) -> None:
        """Make a server. `answer` makes each response, and must not raise. `always` are headers of every response."""
        self._listener = listener
        self._answer = answer
        self._clock = clock
        self._tasks = tasks
        self._log = log
        self._encryption = encryption
        self._limits = limits or Limits()
        self._always = always
        self._peers: dict[_Peer, None] = {}
        self._last_active = clock.monotonic()
        self._counts = {"requests": 0, "refused": 0, "dropped": 0}

    def statistics(self) -> dict[str, int]:
        """Return counters by name: requests, refused requests; dropped, open and busy connections."""
        busy = sum(each.is_busy for each in list(self._peers))
        return {**self._counts, "connections": len(self._peers), "busy": busy}

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def idle_seconds(self) -> float:
        """The seconds since the last request, or since the last byte of a stream."""
        return self._clock.monotonic() - self._last_active

    @property
    def is_busy(self) -> bool:
        """True while a request is answered or a stream runs."""
        return any(each.is_busy for each in self._peers)

    async def accept_loop(self) -> None:
        """Accept connections, each with a task of its own, until the listener closes."""
        while True:
            try:
                conn = await self._listener.accept()
            except ConnectionLost:
                return
            if not self._make_room():
                self._counts["dropped"] += 1
                conn.close()
                continue
            peer = _Peer(conn, conn.peer_host, network_of(conn.peer_host))
            self._peers[peer] = None
            self._tasks.start_soon(self._serve, peer, name="console connection")

    def _make_room(self) -> bool:
        if len(self._peers) < self._limits.connections_max:
            return True
        of_network: dict[str, list[_Peer]] = {}
        for each in self._peers:
            of_network.setdefault(each.network, []).append(each)
        largest_first = sorted(of_network.values(), key=len, reverse=True)
        for may_send in (False, True):
            for peers in largest_first:
                for each in peers:
                    if not each.is_busy or (may_send and each.is_sending):
                        self._drop(each)
                        return True
        return False

    def _drop(self, peer: _Peer) -> None:
        self._counts["dropped"] += 1
        self._peers.pop(peer, None)
        peer.conn.close()

    def close(self) -> None:
        """Stop accepting connections, and end all open connections."""
        self._listener.close()
        for each in list(self._peers):
            each.conn.close()

    async def _serve(self, peer: _Peer) -> None:
        conn, certificate = peer.conn, None
        try:
            if self._encryption is not None:
                deadline = self._clock.monotonic() + self._limits.request_seconds_max
                with self._clock.timeout_at(deadline) as waited:
                    conn, certificate = await self._encryption.handshake(conn)
                if waited.expired:
                    return
            await _Exchanges(self, peer, conn, certificate).run()
        except ConnectionLost:
            return
        except Exception:  # noqa: BLE001 - a bug ends only its connection
            self._log.exception("console.bug", peer=peer.host)
        finally:
            conn.close()
            peer.conn.close()
            self._peers.pop(peer, None)

    # What the exchanges of a connection use

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def tasks(self) -> TaskGroup:
        return self._tasks

    def has_encryption(self) -> bool:
        """True if the listener speaks TLS."""
        return self._encryption is not None

    def common_headers(self) -> Headers:
        """Return the headers of every response."""
        return self._always

    def mark_active(self) -> None:
        """Note that somebody looks."""
        self._last_active = self._clock.monotonic()

    def may_be_busy(self, network: str) -> bool:
        """True if one more connection of this network may be busy."""
        # A response that is sent costs no work. If connections run out, `_make_room` ends it.
        busy = [each for each in self._peers if each.is_busy and not (each.is_streaming or each.is_sending)]
        return sum(each.network == network for each in busy) < self._limits.busy_max

    def count(self, what: str) -> None:
        """Add one to a counter of `statistics`."""
        self._counts[what] += 1

    async def response_to(self, request: Request) -> Response:
        """Make the response to a request."""
        return await self._answer(request)


class _Refused(Exception):
    """A request that is refused before it is complete. The response has this status, and the connection ends."""

    def __init__(self, status: int) -> None:
        super().__init__(_REFUSED.get(status, _REFUSED[400]))
        self.status = status


class _Exchanges:
    """The requests and responses of one connection."""

    def __init__(
        self, server: HttpServer, peer: _Peer, conn: Conn, certificate: ClientCertificate | None
    ) -> None:
        self._server = server
        self._peer = peer
        self._conn = conn
        self._certificate = certificate
        self._clock = server.clock
        self._limits = server.limits
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._machine = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head_bytes_max)
        self._has_bytes = False
        """True once a byte of the next request has arrived."""

    async def run(self) -> None:
        """Answer requests until the connection ends. Raises `ConnectionLost`."""
        while True:
            try:
                request = await self._next_request()
                if request is not None and not self._server.may_be_busy(self._peer.network):
                    raise _Refused(503)
            except _Refused as refusal:
                self._server.count("refused")
                await self._refuse(refusal)
                return
            if request is None:
                return
            self._server.count("requests")
            self._server.mark_active()
            self._peer.is_busy = True
            try:
                await self._respond(request, await self._server.response_to(request))
            finally:
                self._peer.is_busy = False
                self._server.mark_active()
            if self._machine.our_state is not h11.DONE or self._machine.their_state is not h11.DONE:
                return
            self._machine.start_next_cycle()
            self._has_bytes = bool(self._machine.trailing_data[0])

    async def _next_request(self) -> Request | None:
        """Read one request; None if the peer sends none. Raises `ConnectionLost`, `_Refused`."""
        with self._clock.timeout_at(self._clock.monotonic() + self._limits.idle_seconds_max) as idle:
            if not self._has_bytes and not await self._receive():
                return None
        if idle.expired:
            return None
        request: Request | None = None
        deadline = self._clock.monotonic() + self._limits.request_seconds_max
        with self._clock.timeout_at(deadline) as waited:
            request = await self._read_request()
        if waited.expired:
            raise _Refused(408)
        return request

    async def _read_request(self) -> Request | None:
        head = await self._event()
        if not isinstance(head, h11.Request):
            return None
        if head.http_version not in (b"1.0", b"1.1"):
            raise _Refused(505)
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers]
        body = await self._body(headers)
        if body is None:
            return None
        target = head.target.decode("latin-1")
        try:
            path, parts, words = parse_target(target)
        except BadTarget as error:
            raise _Refused(400) from error
        return Request(
            head.method.decode("latin-1"),
            target,
            path,
            parts,
            words,
            headers,
            self._peer.host,
            self._server.has_encryption(),
            body,
            self._certificate,
        )

    async def _body(self, headers: Headers) -> bytes | None:
        most = self._limits.body_bytes_max
        for name, value in headers:
            if name == "content-length" and (len(value) > 9 or int(value) > most):
                raise _Refused(413)
        if self._machine.they_are_waiting_for_100_continue:
            await self._send(self._machine.send(h11.InformationalResponse(status_code=100, headers=[])))
        body = bytearray()
        while True:
            event = await self._event()
            if isinstance(event, h11.EndOfMessage):
                return bytes(body)
            if not isinstance(event, h11.Data):
                return None
            body += event.data
            if len(body) > most:
                raise _Refused(413)

    async def _event(self) -> h11.Event | None:
        """Return the next event of the peer; None at the end of the stream. Raises `ConnectionLost`, `_Refused`."""
        while True:
            try:
                event = self._machine.next_event()
            except h11.RemoteProtocolError as error:
                raise _Refused(error.error_status_hint) from error
            if event is h11.NEED_DATA:
                await self._receive()
                continue
            if isinstance(event, h11.Request | h11.Data | h11.EndOfMessage):
                return event
            return None

    async def _receive(self) -> bool:
        """Receive bytes into the state machine. False at the end of the stream."""
        count: int | None = None
        while count is None:
            await self._conn.readable()
            count = self._conn.recv_into(self._buffer)
        data = bytes(self._buffer[:count])
        try:
            self._machine.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise _Refused(error.error_status_hint) from error
        return bool(count)

    # Answers

    async def _respond(self, request: Request, response: Response) -> None:
        headers = [*self._server.common_headers(), *response.headers]
        if response.stream is not None:
            headers += [("Connection", "close")]
        elif response.status != HTTPStatus.NOT_MODIFIED:
            headers += [("Content-Length", str(len(response.body)))]
        reason = HTTPStatus(response.status).phrase
        head = h11.Response(status_code=response.status, headers=headers, reason=reason)
        data = self._machine.send(head) or b""
        if response.stream is not None:
            self._peer.is_streaming = True
            try:
                await self._send(data)
                await self._stream(response.stream)
            finally:
                if response.close is not None:
                    response.close()
            return
        # HTTP allows no body in these two cases.
        if response.status != HTTPStatus.NOT_MODIFIED and request.method != "HEAD":
            data += self._machine.send(h11.Data(data=response.body)) or b""
        data += self._machine.send(h11.EndOfMessage()) or b""
        self._peer.is_sending = True
        try:
            await self._send(data)
        finally:
            self._peer.is_sending = False

    async def _stream(self, stream: Stream) -> None:
        """Run a response that streams, until it ends or the peer has gone."""
        gone = Gone()

        async def send(data: bytes) -> None:
            if gone.is_set:
                raise ConnectionLost("the peer has closed the connection")
            if data:
                self._server.mark_active()
                await self._send(self._machine.send(h11.Data(data=data)))

        async def watch() -> None:
            # Bytes of a further request are dropped, since the connection will close.
            with suppress(ConnectionLost):
                while True:
                    await self._conn.readable()
                    if self._conn.recv_into(self._buffer) == 0:
                        break
            gone.set()
            self._conn.close()

        self._server.tasks.start_soon(watch, name="console stream's peer")
        try:
            await stream(send, gone)
        finally:
            gone.set()
        await self._send(self._machine.send(h11.EndOfMessage()))

    async def _refuse(self, refusal: _Refused) -> None:
        """Send a response with the reason, then read on for a moment. (A close with unread bytes would reset the
        connection, and the peer would not see the response.)
        """
        text = json.dumps(
            {"status": refusal.status, "code": "INVALID_REQUEST", "sentence": str(refusal)}
        ).encode()
        headers = [
            *self._server.common_headers(),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(text))),
            ("Connection", "close"),
        ]
        if self._machine.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        head = h11.Response(
            status_code=refusal.status, headers=headers, reason=HTTPStatus(refusal.status).phrase
        )
        await self._send((self._machine.send(head) or b"") + (self._machine.send(h11.Data(data=text)) or b""))
        left = LINGER_BYTES_MAX
        with self._clock.timeout_at(self._clock.monotonic() + self._limits.linger_seconds_max):
            while left > 0:
                await self._conn.readable()
                count = self._conn.recv_into(self._buffer)
                if count == 0:
                    return
                left -= count or 0

    async def _send(self, data: bytes | None) -> None:
        """Send bytes. Raises `ConnectionLost` if the peer takes none of them for a while, or takes too long for all."""
        left = memoryview(data or b"")
        stalled = self._limits.stalled_seconds_max
        end = self._clock.monotonic() + stalled + len(left) / self._limits.slowest_bytes_per_second
        while left:
            left = left[self._conn.send([left]) :]
            if left:
                with self._clock.timeout_at(min(end, self._clock.monotonic() + stalled)) as waited:
                    await self._conn.writable()
                if waited.expired or self._clock.monotonic() > end:
                    raise ConnectionLost("the peer takes no bytes, or too few")
