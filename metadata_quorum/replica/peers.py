"""Connections to other nodes: voters, controllers, brokers. PORTED.

Theory of operation
-------------------
`PeerConnections` has one `PeerChannel` for each address. A channel connects when a request needs it. It may have
any number of requests under way, and answers come in the order of the requests. When its connection breaks, the
channel forgets it, and the next request connects anew. Both ends are of one cluster, so an ApiVersions round trip
is left out. A request goes out in the newest version that this node knows, unless the caller names one.

A server answers in the order of its requests. So a long poll delays the calls behind it, and after a late answer
later calls may lose the connection. Calls that must not delay each other use different lanes to one address.

**A request that is overdue closes a silent connection.** After a cable is cut a connection looks healthy for
minutes, although a new connection might succeed. (Kafka's clients close it in any case. Here a client chooses the
deadline, however short, and many clients share the connection, so it must also be silent.)

**A silent peer is tried less and less often.** An address that has been silent is tried again after a pause that
doubles, with jitter, up to `RETRY_SECONDS_MAX`. Requests of all lanes wait for that attempt and share its outcome.
So a dead peer costs at most two attempts per second, and a restarted peer is reached within a second.

**A login that expires soon is replaced (KIP-368).** The next request opens a new connection, while the old one
still receives the answers to earlier requests.

The server closes idle connections (`connections.max.idle.ms`): the reading task sees the end of the stream, and the
channel forgets the connection.

The error shows whether the request may have had an effect. After `NeverSent` the peer has not seen the request, so
it is safe to send it again. After `ConnectionLost` and after `KafkaError` REQUEST_TIMED_OUT it may have seen it.
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
"""The time for one attempt. Loopback and data centres answer in milliseconds; a lost SYN is repeated after one
second.
"""
SILENCE_SECONDS = 0.5
"""An overdue request ends its connection if nothing was received for this long."""
RETRY_SECONDS_MIN = 0.02
RETRY_SECONDS_MAX = 0.5
"""The longest pause between two attempts to reach a silent address, before jitter."""
RETRY_JITTER = 0.5
"""Each pause is prolonged by a random share of it, at most this share."""
RECEIVE_BYTES = 64 * 1024
RECEIVES_MAX = 8
"""Receives of a link in a row. After them, other tasks get a turn, even if the peer sends without end."""
UNANSWERED_MAX = 1024


class NeverSent(ConnectionLost):
    """Raised if the peer is out of reach, so that it has not seen the request."""


class PeerCall:
    """One request under way: `Peer.send` begins it, `Peer.answer` waits for it. `response` or `error` is set before
    `done`.
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
        """End the call with an error. A later answer is dropped."""
        if not self.done.is_set():
            self.error = error
            self.done.set()


class _Link:
    """One connection, from the attempt to open it to its end."""

    __slots__ = ("closed", "conn", "heard_at", "outgoing", "renew_at", "sent", "waiting", "wire", "writing")

    def __init__(self, client_id: str, frame_bytes_max: int) -> None:
        self.wire = ClientConnection(frame_bytes_max, UNANSWERED_MAX, client_id=client_id)
        self.conn: Conn | None = None
        self.waiting: list[PeerCall] = []
        """Calls that were made before the connection was open."""
        self.sent: deque[PeerCall] = deque()
        """Calls without an answer, in order; abandoned calls stay until the link ends."""
        self.outgoing: deque[memoryview] = deque()
        self.heard_at = float("-inf")
        self.renew_at = float("inf")
        self.writing = False
        self.closed = False


class _Address:
    """The state of one host and port: the number of failures in a row, and the time of the next attempt to connect."""

    __slots__ = ("attempt", "failures", "retry_at")

    def __init__(self) -> None:
        self.failures = 0
        self.retry_at = float("-inf")
        self.attempt: Event | None = None
        """Set when the attempt that is due or under way has ended; None if there is no such attempt."""


class Addresses:
    """The state of other nodes' addresses, shared by all `PeerConnections` of a node."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._known: dict[tuple[str, int, str | None], _Address] = {}
        self.attempts = 0

    def get(self, host: str, port: int, address: str | None = None) -> _Address:
        return self._known.setdefault((host, port, address), _Address())

    def failed(self, address: _Address) -> None:
        """Note a failed attempt, and schedule the next one after a pause."""
        pause = min(RETRY_SECONDS_MIN * 2.0 ** min(address.failures, 16), RETRY_SECONDS_MAX)
        pause *= 1.0 + RETRY_JITTER * self._env.random.random()
        address.failures += 1
        address.retry_at = self._env.clock.monotonic() + pause


class Peer:
    """`odradek.metadata_quorum.ports.PeerChannel` to one address."""

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
        """Links that are used only to receive outstanding answers."""

    @property
    def address(self) -> str:
        """The address as `host:port`, for people."""
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
        """Begin a request. If it fails at once, `answer` raises the error."""
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
        """Wait for the response of a call. Raises as `request` does."""
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
        """Fail the calls that are under way."""
        for link in (*self._left, self._link):
            if link is not None:
                self._end(link, ConnectionLost(f"{self.address}: closed"))

    # -- the link -------------------------------------------------------------------------------------------------

    def _end(self, link: _Link, error: ConnectionLost) -> None:
        """End the link, and fail all its calls."""
        if link.closed:
            return
        link.closed = True
        if self._link is link:
            self._link = None
        self._left.pop(link, None)
        if link.heard_at == float("-inf") and link.conn is not None and not self._connections.closed:
            reached("peers.mute_address_distrusted")
            # Count it as a failed attempt, because another program has accepted the connection.
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
        """Use the link for no further calls; it ends after its last answer."""
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
        """Connect and read until the end of the connection."""
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
        """Connect at once, unless the last attempt failed; then wait for the next attempt. Raises `ConnectionLost`."""
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
        """Make the one attempt to reach this address; all its callers wait for it. Raises `ConnectionLost`."""
        clock = self._env.clock
        known.attempt = ended = self._env.event()
        try:
            await clock.sleep_until(known.retry_at)
            return await self._connect_now(known)
        finally:
            known.attempt = None
            ended.set()

    async def _connect_now(self, known: _Address) -> Conn:
        """Connect without a pause. Raises `ConnectionLost`."""
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
        """Open a connection. Raises `ConnectionLost`."""
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
        """Process received bytes, and complete the calls whose answers are whole; b"" is the end of the stream."""
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
        """Send the bytes that the socket takes now. Raises `ConnectionLost`."""
        outgoing = link.outgoing
        while outgoing:
            taken = conn.send(list(outgoing))
            if not taken:
                return
            drop_sent(outgoing, taken)

    async def _write(self, link: _Link, conn: Conn) -> None:
        """Send the bytes that the socket would not take at once, then end."""
        try:
            while link.outgoing and not link.closed:
                await conn.writable()
                self._push(link, conn)
        except ConnectionLost as error:
            self._end(link, ConnectionLost(f"{self.address}: {error}"))
        finally:
            link.writing = False


class PeerConnections:
    """A node's connections to other nodes. `tasks` are the node's tasks: connections end with them at the latest."""

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
        """`addresses` is shared with other connections of this node."""
        self.env = env
        self.addresses = Addresses(env) if addresses is None else addresses
        self.tasks = tasks
        self.client_id = client_id
        self.log = log
        self.frame_bytes_max = frame_bytes_max
        self.closed = False
        self.buffer = memoryview(bytearray(RECEIVE_BYTES))
        """Shared by all channels: nothing awaits between a receive and the end of its parsing."""
        self._peers: dict[tuple[str, int, str, str | None], Peer] = {}

    def channel(self, host: str, port: int, lane: str = "", *, address: str | None = None) -> Peer:
        """Return the channel to this host and port, or to one address of the host. A lane always gets the same channel."""
        key = (host, port, lane, address)
        peer = self._peers.get(key)
        if peer is None:
            peer = self._peers[key] = Peer(self, host, port, address)
        return peer

    async def addresses_of(self, host: str, port: int) -> tuple[str, ...]:
        """Resolve a host name; see `PeerChannels.addresses_of`. A resolver that hangs is given up after
        `CONNECT_SECONDS_MAX`.
        """
        clock = self.env.clock
        found: tuple[str, ...] | None = None
        with clock.timeout_at(clock.monotonic() + CONNECT_SECONDS_MAX):
            found = await self.env.network.addresses_of(host, port)
        if found is None:
            raise ConnectionLost(f"{host}:{port}: the host name was not resolved in time")
        return found

    def close(self) -> None:
        """End all connections; requests fail from now on."""
        self.closed = True
        for peer in self._peers.values():
            peer.close()

    def statistics(self) -> dict[str, int]:
        """Count addresses known (by lanes), connections open, attempts to connect."""
        peers = self._peers.values()
        return {
            "peers": len(peers),
            "connections": sum(peer.is_connected for peer in peers),
            "attempts": self.addresses.attempts,
        }
