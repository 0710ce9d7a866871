"""A simulated network: hosts, listeners, byte streams that arrive late, in pieces or never; faults of single
links are in `links.py`.

Theory of operation
-------------------
A connection is two `SimConn`s. Sent bytes are cut into segments, at random places if the weather says so. The
arrival of each segment is an event of the agenda. Segments of one direction arrive in order. A sender may have
`socket_buffer_bytes` in flight and unread. Bytes that the receiver reads open the window again after one more
latency, so back pressure works as in production. As in TCP, the sender is notified when a quarter of the buffer has
been read, instead of for every byte.

Everything that reaches a node is an event that this node owns. Events of a paused node are held back until the node
resumes. The kernel of a paused or busy process still answers: it accepts connections into the listener's backlog.

Some connections are torn (`Weather.torn_share`). Only these have short sends and receives, cut segments and
spurious wakes. After a short receive the rest is read in the same step; between segments other tasks run.

A link that is cut (one direction) holds its segments until it is healed, as TCP's retransmission would. Only timeouts
end its connections. `sim.machine.links` has the faults of links. Its class `Repeats` makes requests between nodes
arrive twice. A connection may be reset on the way. It may also be silently lost (`sever`): both ends stay open, but
no byte passes. Bytes that were sent before a connection was closed may arrive late, after the bytes of the next
connection. After a storm `may_close_late` is set to False, so that bytes no longer arrive late. Otherwise nodes might
notice closed connections half a minute late, and the cluster would never be whole.

How a node ends decides what its peers notice. The connections of a killed process are reset (after a latency). A
machine without power is silent, so its peers wait and repeat their segments. These are answered by a reset once the
machine is up, or the sender gives up after a quarter of an hour.

This module does not use trio: its waits are `sim.machine.waiting.Signal`s.
"""

from __future__ import annotations

import errno
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Protocol

import attrs

from odradek.env.ports import (
    Buffer,
    Conn,
    ConnectionLost,
    ConnectionRefused,
    DiskError,
    File,
    Listener,
    Network,
    PeerEnd,
)
from sim.machine.disk_files import SimFile
from sim.machine.events import Agenda
from sim.machine.links import Line, Links, Repeats, answers
from sim.machine.waiting import Signal, Waiter, checkpoint, checkpoint_if_cancelled
from sim.machine.weather import Weather

BACKLOG = 1024
FIRST_EPHEMERAL_PORT = 30_000
CONNECT_SECONDS_MAX = 60.0
"""How many seconds a connection attempt waits for an answer before it fails."""
FIRST_RETRANSMISSION_SECONDS = 1.0
RETRANSMISSION_SECONDS_MAX = 512.0
"""The longest wait in seconds before an unacknowledged segment is sent again. If that attempt is not acknowledged
either, the connection is lost.
"""
SILENCE_SECONDS_MAX = 1023.0
"""How many seconds a sender waits in all for the acknowledgement of a segment, before it gives up the connection."""
_OWN_NAMES = ("localhost", "127.0.0.1", "::1")
_SENDFILE_BYTES_MAX = 1 << 18


class Node(Waiter, Protocol):
    """The part of a node's process that the network uses."""

    host: str
    paused: bool
    has_descriptors: bool

    def record(self, what: str, *details: float | str) -> None: ...


@attrs.define(eq=False)
class Host:
    """A machine on the network. `up` is True while its kernel answers."""

    name: str
    address: str
    up: bool = True
    listeners: dict[int, SimListener] = attrs.Factory(dict)
    next_port: int = FIRST_EPHEMERAL_PORT


class Fabric(Links):
    """The simulated network: all hosts, links and connections."""

    def __init__(
        self, agenda: Agenda, weather: Weather, random: Random, torn_random: Random | None = None
    ) -> None:
        """Create the network. `torn_random` draws which connections are torn; None: all of them."""
        super().__init__(agenda, weather, random)
        self._torn_random = torn_random
        self._untorn = weather.untorn()
        self.hosts: dict[str, Host] = {}
        self._connections: dict[SimConn, None] = {}
        self.connection_count = 0
        self.severed: dict[tuple[str, str], float] = {}
        """For each pair of hosts, the virtual time at which connections between them were last silently lost."""
        self.may_close_late = True
        """True while the other end may learn late that a connection was closed, as the weather decides. False after a
        storm.
        """
        self.on_sent: Callable[[SimConn, bytes], None] | None = None
        """Called with an end of a connection and the bytes that this end has sent. The function must change nothing."""
        self.repeats: Repeats | None = None
        """The choice of requests between nodes that arrive twice; None if none do."""

    # --- hosts

    def add_host(self, name: str) -> Host:
        host = Host(name, f"10.0.{len(self.hosts) // 250}.{len(self.hosts) % 250 + 1}")
        self.hosts[name] = host
        return host

    def resolve(self, name: str, asking: str) -> Host | None:
        """Return the host with this name or address, as `asking` resolves it; None if there is none."""
        if name in _OWN_NAMES:
            return self.hosts[asking]
        for host in self.hosts.values():
            if name in (host.name, host.address):
                return host
        return None

    # --- connections

    def connections_of(self, node: Node) -> list[SimConn]:
        return [conn for conn in self._connections if conn.node is node]

    def add_pair(self, client: Node, server: Node) -> tuple[SimConn, SimConn]:
        self.connection_count += 1
        name = f"c{self.connection_count}"
        random, share = self._torn_random, self.weather.torn_share
        weather = self.weather if random is None or random.random() < share else self._untorn
        here = SimConn(self, client, self.hosts[client.host], self.hosts[server.host], f"{name}>", weather)
        there = SimConn(self, server, self.hosts[server.host], self.hosts[client.host], f"{name}<", weather)
        here.peer, there.peer = there, here
        self._connections[here] = self._connections[there] = None
        return here, there

    def sever(self, here: str, there: str) -> int:
        """Lose the connections between two hosts silently, as a firewall does: from now on their segments vanish.
        Return the number of connections.
        """
        severed = 0
        self.severed[here, there] = self.agenda.now
        for conn in self._connections:
            if (conn.host_name, conn.peer_name) in ((here, there), (there, here)):
                severed += conn.is_heard
                conn.is_heard = False
        return severed // 2

    def reset_forgotten(self) -> None:
        """Reset both ends of each silently lost connection, as a firewall does once it answers again."""
        for conn in self._connections:
            if not conn.is_heard:
                self.agenda.at(self.agenda.now, partial(conn.reset, "reset on the way"), conn.node)

    def forget(self, conn: SimConn) -> None:
        self._connections.pop(conn, None)

    def end_node(self, node: Node, *, silent: bool) -> None:
        """End the listeners of a node whose process has ended. Its connections are reset unless `silent`."""
        host = self.hosts[node.host]
        for port, listener in list(host.listeners.items()):
            if listener.node is node:
                del host.listeners[port]
                listener.abandon()
        for conn in self.connections_of(node):
            conn.abandon(silent=silent)

    def statistics(self) -> dict[str, int]:
        return {"connections_open": len(self._connections) // 2, "connections_made": self.connection_count}


class SimConn:
    """One end of a connection: `odradek.env.ports.Conn`."""

    peer: SimConn

    def __init__(
        self, fabric: Fabric, node: Node, host: Host, peer_host: Host, name: str, weather: Weather
    ) -> None:
        self.node = node
        self.name = name
        self.peer_host = peer_host.address
        self.peer_port = 0
        """Always 0, since simulated machines do not distinguish ports of clients."""
        self._fabric = fabric
        self._weather = weather
        self._host = host
        self.host_name = host.name
        self.peer_name = peer_host.name
        self.is_heard = True
        """False if the connection was silently lost, so that all its bytes vanish."""
        self._gives_up = False
        self._unanswered: bytes | None = None
        """The correlation id of the request whose answer is lost together with the connection; None if there is none.
        """
        self._late_until = 0.0
        """The virtual time before which nothing arrives here. So the bytes of a client's next connection may arrive
        before its last bytes.
        """
        self.line = Line()
        self._window = fabric.weather.socket_buffer_bytes
        self._taken = 0
        """Bytes that were read from the buffer, but not yet reported to the sender."""
        self._received = bytearray()
        self._was_short = False
        """True if the last receive has left bytes in the buffer."""
        self._low_water = 1
        self._ended = False
        self._closed = False
        self._lost: str | None = None
        self._readable = Signal(node)
        self._writable = Signal(node)

    # --- the port

    @property
    def is_closed(self) -> bool:
        """True once this end was closed."""
        return self._closed

    async def readable(self) -> None:
        spurious = self._weather.spurious_wake_probability
        if spurious and self._fabric.random.random() < spurious:
            await checkpoint()
            return
        if self._is_readable():
            if not self._was_short:
                await checkpoint()
        else:
            await self._readable.wait()
            while not self._is_readable():
                await self._readable.wait()
        self._check_open()

    def _is_readable(self) -> bool:
        return len(self._received) >= self._low_water or self._ended or self._lost is not None or self._closed

    def wait_for(self, count: int) -> None:
        # As in Linux, a receiver never waits for more bytes than fit. A sender may pause until a third of the
        # buffer is free, but is notified only of each read quarter. So a wait for more than a third of the buffer
        # might never end.
        self._low_water = max(1, min(count, self._fabric.weather.socket_buffer_bytes // 3))
        if self._is_readable():
            self._readable.wake()

    async def writable(self) -> None:
        # As in Linux, a sender is not woken for a small amount of free space. Otherwise a stream would become
        # segments of one byte.
        enough = max(1, self._fabric.weather.socket_buffer_bytes // 3)
        if self._window >= enough or self._lost or self._closed:
            await checkpoint()
        while not (self._window >= enough or self._lost or self._closed):
            await self._writable.wait()
        self._check_open()

    def recv_into(self, buffer: memoryview) -> int | None:
        if self._closed or not self.node.alive:
            self._check_open()
        if not len(buffer):
            raise ValueError("no room to receive into: 0 bytes would look like the end of the stream")
        if not self._received:
            if self._lost:
                raise ConnectionLost(self._lost)
            return 0 if self._ended else None
        weather = self._weather
        count = min(len(buffer), len(self._received))
        if weather.short_recv_probability and count > 1 and self._chance(weather.short_recv_probability):
            count = self._fabric.random.randint(1, count)
        self._was_short = count < len(self._received)
        if not self._was_short:
            buffer[:count] = self._received
            self._received.clear()
        else:
            with memoryview(self._received) as received:
                buffer[:count] = received[:count]
            del self._received[:count]
        self.node.record("recv", self.name, count)
        self._taken += count
        if self._taken >= weather.socket_buffer_bytes // 4:
            taken, self._taken, peer = self._taken, 0, self.peer
            self._transmit(lambda: peer.open_window(taken), peer.node)
        return count

    def peer_end(self) -> PeerEnd:
        self._check_open()
        if self._lost:
            raise ConnectionLost(self._lost)
        if not self._ended:
            return PeerEnd.OPEN
        return PeerEnd.BEHIND_DATA if self._received else PeerEnd.ENDED

    def send(self, chunks: Sequence[Buffer], more: bool = False) -> int:
        self._check_open()
        if self._lost:
            raise ConnectionLost(self._lost)
        data = b"".join(chunks)
        count = min(len(data), self._window)
        short = self._weather.short_send_probability
        if short and count > 1 and self._chance(short):
            count = self._fabric.random.randint(1, count)
        if count == 0:
            return 0
        if count < len(data):
            data = data[:count]
        self._window -= count
        self.node.record("send", self.name, count, zlib.crc32(data))
        if self._fabric.on_sent is not None:
            self._fabric.on_sent(self, data)
        peer = self.peer
        if self._fabric.repeats is not None and self._is_repeated(self._fabric.repeats, data):
            return count
        if self.is_heard:
            transmit, line = self._fabric.transmit, self.line
            for segment in self._segments(data):
                arrive = partial(peer.deliver, segment)
                transmit(self.host_name, self.peer_name, arrive, peer.node, line, len(segment))
        if not self.is_heard and not self._gives_up:
            self._gives_up = True
            agenda = self._fabric.agenda
            agenda.at(agenda.now + SILENCE_SECONDS_MAX, partial(self.reset, "timed out"), self.node)
        return count

    def sendfile(self, file: File, offset: int, count: int) -> int:
        if not isinstance(file, SimFile):
            raise TypeError(f"{file!r} is not a file on a simulated disk")
        self._check_open()
        wanted = min(count, self._window, _SENDFILE_BYTES_MAX)
        if wanted <= 0:
            return self.send([b""])
        data = file.pread(wanted, offset)
        if not data:
            raise DiskError(file.directory, file.path, "read", 0, f"ends before {offset + count}")
        return self.send([data])

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._fabric.forget(self)
        self.node.record("close", self.name)
        peer = self.peer
        if self._fabric.may_close_late and self._chance(self._fabric.weather.late_probability):
            late = self._fabric.random.uniform(0.0, self._fabric.weather.late_seconds)
            peer._late_until = max(peer._late_until, self._fabric.agenda.now + late)
        if self._received:  # A kernel that must discard unread bytes sends a reset.
            self._transmit(lambda: peer.reset("the peer reset the connection"), peer.node, self.line)
        else:
            self._transmit(peer.end, peer.node, self.line)
        self._readable.wake()
        self._writable.wake()

    # -- events at this end ------------------------------------------------------------------------

    def deliver(self, segment: bytes) -> None:
        """Called when a segment arrives."""
        if self._late_until and self._is_late(partial(self.deliver, segment)):
            return
        if self._lost or not self.is_heard:
            return
        if self._closed:
            self._answer_for_the_dead(FIRST_RETRANSMISSION_SECONDS)
            return
        reset_probability = self._weather.reset_probability
        if reset_probability and self._chance(reset_probability):
            peer = self.peer
            self.reset("reset on the way")
            self._transmit(lambda: peer.reset("reset on the way"), peer.node)
            return
        self._received += segment
        if len(self._received) >= self._low_water:
            self._readable.wake()

    def _answer_for_the_dead(self, wait: float) -> None:
        """Answer a segment to a closed connection with a reset. If the machine has no power, there is no answer, and
        the sender sends the segment again later.
        """
        peer = self.peer
        if self._host.up:
            self._transmit(lambda: peer.reset("the peer reset the connection"), peer.node)
        elif wait > RETRANSMISSION_SECONDS_MAX:
            peer.reset("timed out")
        else:
            agenda = self._fabric.agenda
            agenda.at(agenda.now + wait, lambda: self._answer_for_the_dead(2 * wait), peer.node)

    def _is_late(self, arrive: Callable[[], None]) -> bool:
        """Hold an arrival back, in order, while the connection's bytes are delayed. Return True if the arrival was
        held back.
        """
        agenda = self._fabric.agenda
        if agenda.now >= self._late_until:
            return False
        agenda.at(self._late_until, arrive, self.node)
        return True

    def end(self) -> None:
        """Called when the peer has closed its end."""
        if self._is_late(self.end) or not self.is_heard:
            return
        self._ended = True
        self._readable.wake()

    def reset(self, reason: str) -> None:
        """Called when the connection is lost for this reason."""
        if self._is_late(partial(self.reset, reason)):
            return
        if not self._lost and not self._closed:
            self._lost = reason
            self._readable.wake()
            self._writable.wake()

    def open_window(self, count: int) -> None:
        """Called when the peer has read `count` bytes from its buffer."""
        self._window += count
        self._writable.wake()

    def abandon(self, *, silent: bool) -> None:
        """Close the connection of a process that has ended. The peer gets a reset unless `silent`."""
        self._closed = True
        self._fabric.forget(self)
        if not silent:
            peer = self.peer
            self._transmit(lambda: peer.reset("the peer reset the connection"), peer.node, self.line)

    def _is_repeated(self, repeats: Repeats, data: bytes) -> bool:
        """Lose the connection if a request is chosen to arrive twice. Return True if these bytes are lost with the
        connection.
        """
        peer, agenda = self.peer, self._fabric.agenda
        if self._unanswered is not None and answers(data, self._unanswered):
            self._unanswered = None
            agenda.at(agenda.now, partial(self.reset, "reset on the way"), self.node)
            self._transmit(partial(peer.reset, "reset on the way"), peer.node)
            return True
        if not self.name.endswith(">"):
            return False
        repeat = repeats.choose(self.host_name, self.peer_name, data, agenda.now)
        if repeat is not None:
            self.node.record("repeat", self.name, repeat.api, repeat.late_seconds)
            if repeat.is_late:
                peer._late_until = max(peer._late_until, agenda.now + repeat.late_seconds)
                self._transmit(partial(self.reset, "reset on the way"), self.node)
            else:
                peer._unanswered = repeat.correlation_id
        return False

    # --- helpers

    def _check_open(self) -> None:
        if not self.node.alive:
            raise ConnectionLost("the node has crashed")
        if self._closed:
            raise ConnectionLost("closed")

    def _chance(self, probability: float) -> bool:
        return probability > 0 and self._fabric.random.random() < probability

    def _transmit(
        self, arrive: Callable[[], None], owner: Node, line: Line | None = None, size: int = 0
    ) -> None:
        if self.is_heard:
            self._fabric.transmit(self.host_name, self.peer_name, arrive, owner, line, size)

    def _segments(self, data: bytes) -> list[bytes]:
        split = self._weather.split_probability
        if not split or len(data) < 2 or not self._chance(split):
            return [data]
        random = self._fabric.random
        cuts = sorted(random.randrange(1, len(data)) for _ in range(random.randint(1, 3)))
        edges = [0, *cuts, len(data)]
        return [data[start:end] for start, end in pairwise(edges) if start < end]


class SimListener:
    """`odradek.env.ports.Listener` on the simulated network."""

    def __init__(self, fabric: Fabric, node: Node, host: Host, port: int) -> None:
        self.node = node
        self.port = port
        self._fabric = fabric
        self._host = host
        self._backlog: deque[SimConn] = deque()
        self._closed = False
        self._ready = Signal(node)

    async def accept(self) -> SimConn:
        if self._backlog:
            await checkpoint()
        while not self._backlog:
            if self._closed:
                raise ConnectionLost("the listener is closed")
            await self._ready.wait()
        if not self.node.alive:
            raise ConnectionLost("the node has crashed")
        conn = self._backlog.popleft()
        self.node.record("accept", conn.name, conn.peer_host)
        return conn

    def offer(self, conn: SimConn) -> bool:
        """Add a connection to the backlog. Return False if the backlog is full."""
        if len(self._backlog) >= BACKLOG:
            return False
        self._backlog.append(conn)
        self._fabric.agenda.at(self._fabric.agenda.now, self._ready.wake, self.node)
        return True

    def abandon(self) -> None:
        """End the listener, since its process has ended or has closed it."""
        self._closed = True
        self._backlog.clear()

    def close(self) -> None:
        if self._closed:
            return
        self._host.listeners.pop(self.port, None)
        waiting = list(self._backlog)
        self.abandon()
        for conn in waiting:
            conn.close()
        self._ready.wake()


@attrs.define(eq=False)
class _Attempt:
    """A connection attempt. `conn` or `failure` is set when it has ended."""

    decided: Signal
    conn: SimConn | None = None
    failure: str | None = None
    given_up: bool = False

    def fail(self, reason: str) -> None:
        if self.conn is None and self.failure is None:
            self.failure = reason
            self.decided.wake()

    def succeed(self, conn: SimConn) -> None:
        if self.given_up or self.failure is not None:
            conn.close()
            return
        self.conn = conn
        self.decided.wake()


class SimNetwork:
    """`odradek.env.ports.Network` for one node."""

    def __init__(self, fabric: Fabric, node: Node) -> None:
        self._fabric = fabric
        self._node = node

    def listen(
        self,
        host: str,
        port: int,
        *,
        send_buffer_bytes: int | None = None,
        receive_buffer_bytes: int | None = None,
    ) -> SimListener:
        """Listen on a port. The arguments for the sizes of buffers are ignored, since the weather decides these
        sizes.
        """
        own = self._fabric.hosts[self._node.host]
        if not self._node.alive:
            raise OSError(errno.ENETDOWN, "the node has crashed")
        if host not in ("", "0.0.0.0", "::") and self._fabric.resolve(host, own.name) is not own:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of {own.name}")
        if port == 0:
            while own.next_port in own.listeners:
                own.next_port += 1
            port = own.next_port
            own.next_port += 1
        if port in own.listeners:
            raise OSError(errno.EADDRINUSE, f"port {port} of {own.name} is in use")
        listener = own.listeners[port] = SimListener(self._fabric, self._node, own, port)
        self._node.record("listen", port)
        return listener

    async def addresses_of(self, host: str, port: int) -> tuple[str, ...]:
        """Return the host's only address, which is its name. Raises `ConnectionLost` for an unknown host."""
        await checkpoint()
        target = self._fabric.resolve(host, self._node.host)
        if target is None:
            raise ConnectionLost(f"{host}:{port}: no such host")
        return (target.name,)

    async def connect(self, host: str, port: int, *, address: str | None = None) -> SimConn:
        host = host if address is None else address
        await checkpoint_if_cancelled()
        if not self._node.alive:
            raise ConnectionLost("the node has crashed")
        fabric, node = self._fabric, self._node
        if not node.has_descriptors:
            raise ConnectionLost(f"{host}:{port}: too many open files")
        target = fabric.resolve(host, node.host)
        if target is None:
            raise ConnectionLost(f"{host}:{port}: no such host")
        node.record("connect", host, port)
        attempt = _Attempt(Signal(node))
        timeout = fabric.agenda.at(
            fabric.agenda.now + CONNECT_SECONDS_MAX, lambda: attempt.fail("timed out"), node
        )
        fabric.transmit(node.host, target.name, lambda: self._arrive(target, port, attempt))
        try:
            while attempt.conn is None and attempt.failure is None:
                await attempt.decided.wait()
        except BaseException:
            attempt.given_up = True
            raise
        finally:
            timeout.cancel()
        if attempt.conn is None:
            lost = ConnectionRefused if attempt.failure == "refused" else ConnectionLost
            raise lost(f"{host}:{port}: {attempt.failure}")
        node.record("connected", attempt.conn.name)
        return attempt.conn

    def _arrive(self, target: Host, port: int, attempt: _Attempt) -> None:
        """Let the target's kernel accept or refuse the attempt."""
        if not target.up:
            return
        fabric, node = self._fabric, self._node
        listener = target.listeners.get(port)
        closed = fabric.closed(node.host, target.name)
        if closed == "swallows":
            return
        if listener is None or closed == "refuses":
            fabric.transmit(target.name, node.host, lambda: attempt.fail("refused"), owner=node)
            return
        here, there = fabric.add_pair(node, listener.node)
        if not node.alive or not listener.offer(there):
            here.abandon(silent=True)
            there.abandon(silent=True)
            fabric.transmit(target.name, node.host, lambda: attempt.fail("refused"), owner=node)
            return
        fabric.transmit(target.name, node.host, lambda: attempt.succeed(here), owner=node, line=there.line)


if TYPE_CHECKING:

    def _conforms(
        conn: SimConn, listener: SimListener, network: SimNetwork
    ) -> tuple[Conn, Listener, Network]:
        return conn, listener, network
