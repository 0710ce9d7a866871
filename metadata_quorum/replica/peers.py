"""Connections to other nodes (voters, controllers, brokers): requests under way, timeouts, name resolution, the
wait before an address is tried again. PORTED.

Theory of operation
-------------------
`PeerConnections` has one `PeerChannel` for each address and lane. A channel connects when a request needs it.
It may have any number of requests under way, and answers arrive in the order of the requests. After its
connection has broken, the next request connects again. Both ends belong to one cluster, so there is no
ApiVersions round trip. A request is sent in the newest version that this node knows, unless the caller names
another version.

A server answers in the order of the requests. So a long poll delays later calls, which may even lose the
connection. Calls that must not delay each other use different lanes to the same address.

**An overdue request closes a silent connection.** After a cable is cut, a connection looks healthy for
minutes, although a new connection might succeed. (Kafka's clients close the connection after any overdue
request. Here the connection must also be silent, because many clients share it, and a client may choose any
short deadline.)

**A silent peer is tried less and less often.** After a failed attempt the next one is made after a pause,
which doubles up to `RETRY_SECONDS_MAX`, with jitter. Requests of all lanes wait for the next attempt and
share its outcome. So a dead peer costs at most two attempts per second. A peer that starts again is reached
within a second.

**A connection whose login expires soon is replaced (KIP-368).** The next request opens a new connection,
while the old one still receives the answers to earlier requests.

The server closes idle connections (`connections.max.idle.ms`). The reading task then sees the end of the
stream, and the channel drops the connection.

The kind of an error shows whether the request may have had an effect. After `NeverSent` the peer has not seen
the request, so it may safely be sent again. After `ConnectionLost` and after `KafkaError` REQUEST_TIMED_OUT
the peer may have seen it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from odradek.env.ports import Conn, ConnectionLost, Env, Event, Log, TaskGroup, renewal_time
from odradek.named_states import reached
from odradek.wire.api import api_versions
from odradek.wire.errors import ErrorCode, KafkaError, LocalProtocolError, RemoteProtocolError
from odradek.wire.framing.connection import MAX_FRAME_BYTES, ClientConnection, ResponseReceived
from odradek.wire.framing.outgoing import drop_sent
from odradek.wire.structure import Message

__all__ = ["Addresses", "NeverSent", "Peer", "PeerCall", "PeerConnections"]

CONNECT_SECONDS_MAX = 2.0
"""The time limit of one attempt to connect, in seconds. A host in the same data centre answers in
milliseconds. A lost SYN packet is repeated after one second, which is still in time.
"""
SILENCE_SECONDS = 0.5
"""If nothing was received on a connection for this time, in seconds, an overdue request closes the
connection.
"""
RETRY_SECONDS_MIN = 0.02
RETRY_SECONDS_MAX = 0.5
"""The longest pause between two attempts to connect to a silent address, in seconds, without jitter."""
RETRY_JITTER = 0.5
"""The largest random prolongation of a pause, as a share of the pause."""
RECEIVE_BYTES = 64 * 1024
RECEIVES_MAX = 8
"""The most receive calls on one connection in a row. After that other tasks get a turn, even if more bytes
are ready.
"""
UNANSWERED_MAX = 1024


class NeverSent(ConnectionLost):
    """Raised if the connection to the peer failed, so that the peer has not seen the request."""


class PeerCall:
    """One request under way. `Peer.send` starts the call, and `Peer.answer` waits for it. When `done` is set,
    either `response` or `error` is set.
    """

    __slots__ = ("asked_at", "done", "error", "link", "message", "response", "version")

    def __init__(self, message: Message, version: int, done: Event, asked_at: float) -> None:
        self.asked_at = asked_at
        self.message = message
        self.version = version
        self.done = done
        self.link: _Link | None = None
        self.response: Message | None = None
        self.error: Exception | None = None

    def fail(self, error: Exception) -> None:
        """End the call with an error. An answer that arrives later is dropped."""
        if not self.done.is_set():
            self.error = error
            self.done.set()


class _Link:
    """One connection to a peer, from the attempt to open it until its end."""

    __slots__ = ("closed", "conn", "heard_at", "outgoing", "renew_at", "sent", "waiting", "wire", "writing")

    def __init__(self, client_id: str, frame_bytes_max: int) -> None:
        self.wire = ClientConnection(frame_bytes_max, UNANSWERED_MAX, client_id=client_id)
        self.conn: Conn | None = None
        self.waiting: list[PeerCall] = []
        """Calls that were made before the connection was open."""
        self.sent: deque[PeerCall] = deque()
        """Calls that were sent and have no answer yet, in order. Abandoned calls stay here until the
        connection ends.
        """
        self.outgoing: deque[memoryview] = deque()
        self.heard_at = float("-inf")
        self.renew_at = float("inf")
        self.writing = False
        self.closed = False


class _Address:
    """The state of one address: the number of failed attempts in a row, and the time of the next attempt."""

    __slots__ = ("attempt", "failures", "retry_at")

    def __init__(self) -> None:
        self.failures = 0
        self.retry_at = float("-inf")
        self.attempt: Event | None = None
        """An event that is set when the present attempt to connect has ended. None without an attempt. An
        attempt may still wait for `retry_at`.
        """


class Addresses:
    """The state of other nodes' addresses, shared by all `PeerConnections` of a node."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._known: dict[tuple[str, int, str | None], _Address] = {}
        self.attempts = 0

    def get(self, host: str, port: int, address: str | None = None) -> _Address:
        return self._known.setdefault((host, port, address), _Address())

    def failed(self, address: _Address) -> None:
        """Count a failed attempt, and set the time of the next attempt."""
        pause = min(RETRY_SECONDS_MIN * 2.0 ** min(address.failures, 16), RETRY_SECONDS_MAX)
        pause *= 1.0 + RETRY_JITTER * self._env.random.random()
        address.failures += 1
        address.retry_at = self._env.clock.monotonic() + pause


class Peer:
    """The `PeerChannel` to one address (`odradek.metadata_quorum.ports`)."""

    def __init__(
        self, connections: PeerConnections, host: str, port: int, address: str | None = None
    ) -> None:
        self.host = host
        self.port = port
        self._address = address
        self._connections = connections
        self._known = connections.addresses.get(host, port, address)
        self._env = connections.env
        self._link: _Link | None = None
        self._left: dict[_Link, None] = {}
        """Connections that get no further requests, but still receive answers."""

    @property
    def address(self) -> str:
        """The address as `host:port`, for log lines and errors."""
        return f"{self.host}:{self.port}"

    @property
    def is_connected(self) -> bool:
        return self._link is not None and self._link.conn is not None

    async def request(self, message: Any, deadline: float, *, version: int | None = None) -> Any:
        """Send a request as `PeerChannel.request` does. It may also raise `NeverSent`, and `LocalProtocolError` for
        a version that does not exist.
        """
        return await self.answer(self.send(message, version), deadline)

    def send(self, message: Any, version: int | None = None) -> PeerCall:
        """Start a request. If it fails at once, `answer` raises the error."""
        connections = self._connections
        if version is None:
            version = api_versions(message.API_KEY)[1]
        now = self._env.clock.monotonic()
        call = PeerCall(message, version, self._env.event(), now)
        if connections.closed:
            reached("peers.never_sent")
            call.fail(NeverSent(f"{self.address}: the request was not sent, because this node is stopping"))
            return call
        link = self._link
        if link is not None and now >= link.renew_at:
            self._leave(link)
            link = None
        if link is None:
            link = self._link = _Link(connections.client_id, connections.frame_bytes_max)
            connections.tasks.start_soon(self._serve, link, name=f"peer {self.address}")
        call.link = link
        if link.conn is None:
            link.waiting.append(call)
        else:
            self._send(link, link.conn, [call])
        return call

    async def answer(self, call: PeerCall, deadline: float) -> Any:
        """Wait for the response to a call. Raises the same errors as `request`."""
        clock = self._env.clock
        link = call.link
        try:
            with clock.timeout_at(deadline):
                await call.done.wait()
        finally:
            if link is not None and call in link.waiting:
                link.waiting.remove(call)
        if call.error is not None:
            raise call.error
        if call.response is None:
            assert link is not None, "a call without a connection ended without an error"
            silent_since = max(link.heard_at, call.asked_at)
            if link.conn is not None and clock.monotonic() - silent_since >= SILENCE_SECONDS:
                reached("peers.silent_connection_ended")
                self._end(link, ConnectionLost(f"{self.address} has not answered an earlier request in time"))
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"{self.address} has not answered the request in time"
            )
        return call.response

    def close(self) -> None:
        """Close the connections. Calls under way fail."""
        for link in (*self._left, self._link):
            if link is not None:
                self._end(link, ConnectionLost(f"{self.address}: closed"))

    # -- the connection ---------------------------------------------------------------------------------------

    def _end(self, link: _Link, error: ConnectionLost) -> None:
        """End a connection, and fail all its calls."""
        if link.closed:
            return
        link.closed = True
        if self._link is link:
            self._link = None
        self._left.pop(link, None)
        if link.heard_at == float("-inf") and link.conn is not None and not self._connections.closed:
            reached("peers.mute_address_distrusted")
            # This connection never received anything, so another program may listen at the address. Count the
            # connection as a failed attempt to connect.
            self._connections.addresses.failed(self._known)
        if link.conn is not None:
            link.conn.close()
        link.outgoing.clear()
        waiting, link.waiting = link.waiting, []
        sent, link.sent = link.sent, deque()
        for call in sent:
            call.fail(ConnectionLost(str(error)))
        for call in waiting:
            call.fail(NeverSent(str(error)))

    def _leave(self, link: _Link) -> None:
        """Send no further calls on this connection. The connection ends after the answer to its last call."""
        self._link = None
        self._left[link] = None
        self._end_left(link)

    def _end_left(self, link: _Link) -> None:
        if link in self._left and not link.sent:
            self._end(
                link,
                ConnectionLost(
                    f"{self.address}: this node closed the connection, because its login ends soon"
                ),
            )

    async def _serve(self, link: _Link) -> None:
        """Open a connection, send the calls that wait for it, and read answers until it ends."""
        try:
            conn = await self._connect()
        except ConnectionLost as error:
            self._end(link, error)
            return
        if link.closed:
            reached("peers.connected_too_late")
            conn.close()
            return
        link.conn = conn
        link.renew_at = renewal_time(conn)
        waiting, link.waiting = link.waiting, []
        self._send(link, conn, waiting)
        buffer = self._connections.buffer
        try:
            while not link.closed:
                await conn.readable()
                for _ in range(RECEIVES_MAX):
                    if link.closed or (count := conn.recv_into(buffer)) is None:
                        break
                    self._receive(link, buffer[:count])
                    if count < len(buffer):
                        break
        except ConnectionLost as error:
            self._end(link, ConnectionLost(f"{self.address}: {error}"))

    async def _connect(self) -> Conn:
        """Connect: at once if the last attempt succeeded, otherwise at the time of the next attempt.

        Raises `ConnectionLost`.
        """
        known = self._known
        if known.failures:
            if known.attempt is None:
                return await self._try_again(known)
            failures = known.failures
            await known.attempt.wait()
            if known.failures > failures:
                reached("peers.failed_with_another")
                raise ConnectionLost(f"{self.address} has stopped answering")
        return await self._connect_now(known)

    async def _try_again(self, known: _Address) -> Conn:
        """Wait for the time of the next attempt, and connect.

        Calls of other lanes wait for this attempt. Raises `ConnectionLost`.
        """
        clock = self._env.clock
        known.attempt = ended = self._env.event()
        try:
            await clock.sleep_until(known.retry_at)
            return await self._connect_now(known)
        finally:
            known.attempt = None
            ended.set()

    async def _connect_now(self, known: _Address) -> Conn:
        """Connect now. If the attempt fails, record the failure. Raises `ConnectionLost`."""
        addresses = self._connections.addresses
        if self._connections.closed:
            raise ConnectionLost(f"{self.address}: this node closed the connection, because it is stopping")
        addresses.attempts += 1
        try:
            return await self._open()
        except ConnectionLost:
            addresses.failed(known)
            raise

    async def _open(self) -> Conn:
        """Open a connection within `CONNECT_SECONDS_MAX`. Raises `ConnectionLost`."""
        clock = self._env.clock
        conn: Conn | None = None
        with clock.timeout_at(clock.monotonic() + CONNECT_SECONDS_MAX):
            network = self._env.network
            if self._address is None:
                conn = await network.connect(self.host, self.port)
            else:
                conn = await network.connect(self.host, self.port, address=self._address)
        if conn is None:
            raise ConnectionLost(f"{self.address} did not accept a connection in time")
        return conn

    def _receive(self, link: _Link, data: memoryview) -> None:
        """Process received bytes, and complete the calls whose answers are complete. b"" means the end of the
        stream.
        """
        if not data:
            self._end(link, ConnectionLost(f"{self.address} closed the connection"))
            return
        link.heard_at = self._env.clock.monotonic()
        self._known.failures = 0
        try:
            link.wire.receive_data(data)
            while isinstance(event := link.wire.next_event(), ResponseReceived):
                call = link.sent.popleft()
                call.response = event.response
                call.done.set()
            self._end_left(link)
            if self._env.buggify("peers.drop_connection"):
                self._end(link, ConnectionLost(f"{self.address}: closed"))
        except RemoteProtocolError as error:
            self._connections.log.warning("peer.broken_answer", peer=self.address, error=str(error))
            self._end(link, ConnectionLost(f"{self.address}: {error}"))

    def _send(self, link: _Link, conn: Conn, calls: list[PeerCall]) -> None:
        for call in calls:
            try:
                frame = link.wire.send(call.message, call.version)
            except LocalProtocolError as error:
                call.fail(error)
                continue
            link.sent.append(call)
            link.outgoing.append(memoryview(frame))
        if link.writing or not link.outgoing:
            return
        try:
            self._push(link, conn)
        except ConnectionLost as error:
            self._end(link, ConnectionLost(f"{self.address}: {error}"))
            return
        if link.outgoing:
            link.writing = True
            self._connections.tasks.start_soon(self._write, link, conn, name="peer write")

    def _push(self, link: _Link, conn: Conn) -> None:
        """Send as many bytes as the socket accepts now. Raises `ConnectionLost`."""
        outgoing = link.outgoing
        while outgoing:
            taken = conn.send(list(outgoing))
            if not taken:
                return
            drop_sent(outgoing, taken)

    async def _write(self, link: _Link, conn: Conn) -> None:
        """Send the bytes that the socket did not accept at once. The task ends when all are sent."""
        try:
            while link.outgoing and not link.closed:
                await conn.writable()
                self._push(link, conn)
        except ConnectionLost as error:
            self._end(link, ConnectionLost(f"{self.address}: {error}"))
        finally:
            link.writing = False


class PeerConnections:
    """All connections of a node to other nodes.

    The connections run in the task group `tasks`, and end with it at the latest.
    """

    def __init__(
        self,
        env: Env,
        tasks: TaskGroup,
        *,
        client_id: str,
        log: Log,
        frame_bytes_max: int = MAX_FRAME_BYTES,
        addresses: Addresses | None = None,
    ) -> None:
        """`addresses` has the state of each address, and is shared with the other `PeerConnections` of this
        node.
        """
        self.env = env
        self.addresses = Addresses(env) if addresses is None else addresses
        self.tasks = tasks
        self.client_id = client_id
        self.log = log
        self.frame_bytes_max = frame_bytes_max
        self.closed = False
        self.buffer = memoryview(bytearray(RECEIVE_BYTES))
        """The receive buffer, which all channels share. No task switch occurs between a receive and the end
        of its parsing.
        """
        self._peers: dict[tuple[str, int, str, str | None], Peer] = {}

    def channel(self, host: str, port: int, lane: str = "", *, address: str | None = None) -> Peer:
        """Return the channel to this host and port; `address` selects one of the host's IP addresses.

        A lane always gets the same channel.
        """
        key = (host, port, lane, address)
        peer = self._peers.get(key)
        if peer is None:
            peer = self._peers[key] = Peer(self, host, port, address)
        return peer

    async def addresses_of(self, host: str, port: int) -> tuple[str, ...]:
        """Resolve a host name; see `PeerChannels.addresses_of`. The time limit is `CONNECT_SECONDS_MAX`."""
        clock = self.env.clock
        found: tuple[str, ...] | None = None
        with clock.timeout_at(clock.monotonic() + CONNECT_SECONDS_MAX):
            found = await self.env.network.addresses_of(host, port)
        if found is None:
            raise ConnectionLost(f"{host}:{port}: the host name was not resolved in time")
        return found

    def close(self) -> None:
        """Close all connections. Requests fail from now on."""
        self.closed = True
        for peer in self._peers.values():
            peer.close()

    def statistics(self) -> dict[str, int]:
        """Return figures for metrics: channels, open connections, and attempts to connect."""
        peers = self._peers.values()
        return {
            "peers": len(peers),
            "connections": sum(peer.is_connected for peer in peers),
            "attempts": self.addresses.attempts,
        }
