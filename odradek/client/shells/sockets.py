"""Performs the effects of a core with non-blocking sockets and a selector: connecting, TLS, sending, receiving.
SHELL. `blocking.py` and `io_thread.py` use this module.

`Sockets` performs the core's effects (`perform_effects`) and reports the events of sockets to the core
(`handle`). Its owner runs the loop that calls `select`. If there is a lock for the core, the owner holds this
lock during every call except `select`.

Two kinds of work may take long, so each runs in a separate thread: resolving a host name, and computations. Such a
thread changes only `_finished`, and wakes `select`.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from odradek.client.core.client_core import ClientCore, Close, Compute, Connect, Send
from odradek.client.core.operation import Work
from odradek.client.shells.tls import opened_tls
from odradek.client.shells.tokens import opened_tokens
from odradek.env.tls_ports import TlsFailed, TlsSession
from odradek.security.idle_records import IdleBytes
from odradek.security.tls_conn import ANSWERS_BYTES_MAX
from odradek.wire.framing.outgoing import drop_sent

__all__ = ["Ready", "Sockets"]

_RECEIVE_BYTES = 1 << 19
_SEND_PIECES_MAX = 64
_SELECT_SECONDS_MAX = 86_400.0
_FEED_BYTES = 1 << 16
"""The maximum number of encrypted bytes that are given to TLS before the decrypted bytes are processed."""

Ready = list[tuple[selectors.SelectorKey, int]]
_Place: TypeAlias = tuple[Any, ...]
"""The family, type and protocol of a socket, and the address to connect to."""


class _Connection:
    """One connection of the core, with its socket. `addresses` has the addresses of the host that were not
    tried yet.
    """

    def __init__(
        self, connection_id: int, addresses: list[_Place], tls: Callable[[], TlsSession] | None
    ) -> None:
        """Make the state of a connection. `tls` makes a TLS session for each attempt to connect."""
        self.connection_id = connection_id
        self.new_session = tls
        self.tls: TlsSession | None = None
        self.has_shaken_hands = False
        self.idle = IdleBytes()
        self.answer_bytes = 0
        """The bytes that TLS itself has produced, such as answers to key updates, since the server last read
        everything.
        """
        self.addresses = addresses
        self.socket: socket.socket | None = None
        self.connected = False
        self.writing = False
        self.low_water = 1
        self.outgoing: deque[memoryview] = deque()


class Sockets:
    """The sockets of a core, and their selector."""

    def __init__(self, core: ClientCore) -> None:
        self._core = core
        security = core.config.security
        core.tokens = opened_tokens(security)
        self._tls = None if security is None or security.tls is None else opened_tls(security.tls)
        self._decrypted = memoryview(bytearray(_RECEIVE_BYTES if self._tls is not None else 0))
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, _Connection] = {}
        self._received = memoryview(bytearray(_RECEIVE_BYTES))
        self._unsent: dict[_Connection, None] = {}
        self._resolving: dict[tuple[str, int], list[_Connection]] = {}
        """The connections that wait for a host name to be resolved, by (host, port)."""
        self._finished: deque[Callable[[], None]] = deque()
        self._finished_receiver: socket.socket | None = None
        self._finished_sender: socket.socket | None = None

    def watch(self, wakeup: socket.socket) -> None:
        """Make `select` return when `wakeup` can be read. The caller must then read from `wakeup`."""
        self._selector.register(wakeup, selectors.EVENT_READ, None)

    def close(self) -> None:
        """Close the selector. The sockets are closed by the core's `Close` effects."""
        self._selector.close()
        for sock in (self._finished_receiver, self._finished_sender):
            if sock is not None:
                sock.close()

    def drain(self, seconds_max: float) -> None:
        """Send waiting bytes to the kernel, for at most `seconds_max`. Otherwise requests without answers (acks=0)
        would be lost.
        """
        deadline = time.monotonic() + seconds_max
        with selectors.DefaultSelector() as writable:
            for connection in self._connections.values():
                if connection.writing and connection.socket is not None:
                    writable.register(connection.socket, selectors.EVENT_WRITE, connection)
            while writable.get_map() and (left := deadline - time.monotonic()) > 0:
                for key, _ in writable.select(left):
                    self._write(key.data)
                    if not key.data.writing or key.data.socket is None:
                        writable.unregister(key.fileobj)

    def select(self, timeout: float | None) -> Ready:
        """Wait until a socket is ready, at most `timeout` seconds (None: for ever). It may return earlier."""
        # The system call takes milliseconds as an int, so a timeout of many days might not fit.
        return self._selector.select(None if timeout is None else min(timeout, _SELECT_SECONDS_MAX))

    def handle(self, ready: Ready) -> None:
        """Report the events of these sockets to the core."""
        for key, events in ready:
            if key.fileobj is self._finished_receiver:
                self._take_finished()
                continue
            connection: _Connection | None = key.data
            if connection is None or connection.socket is not key.fileobj:
                continue
            if not connection.connected:
                self._finish_connecting(connection)
                continue
            if events & selectors.EVENT_WRITE:
                self._write(connection)
            if events & selectors.EVENT_READ and connection.socket is not None:
                self._read(connection)

    def perform_effects(self) -> None:
        """Perform the core's effects until there are none left."""
        while effects := self._core.effects():
            for effect in effects:
                match effect:
                    case Connect(connection_id, host, port):
                        self._connect(connection_id, host, port)
                    case Send(connection_id, data):
                        self._send(connection_id, data)
                    case Close(connection_id):
                        connection = self._connections.get(connection_id)
                        if connection is not None:
                            self._unsent.pop(connection, None)
                            self._forget(connection)
                    case Compute(work):
                        self._beside(work.function, partial(self._computed, work))
            # Send only after all effects, so that the bytes of several core steps need one system call.
            unsent, self._unsent = self._unsent, {}
            for connection in unsent:
                if connection.socket is not None:
                    self._write(connection)

    def _connect(self, connection_id: int, host: str, port: int) -> None:
        tls = self._tls
        new_session = None if tls is None else partial(tls.client_session, host)
        connection = _Connection(connection_id, _numeric(host, port), new_session)
        self._connections[connection_id] = connection
        if connection.addresses:
            self._try_next_address(connection, "no address")
            return
        waiting = self._resolving.get((host, port))
        if waiting is None:
            waiting = self._resolving[host, port] = []
            self._beside(partial(_resolved, host, port), partial(self._take_resolved, host, port))
        waiting.append(connection)

    def _take_resolved(
        self, host: str, port: int, found: list[_Place] | None, error: Exception | None
    ) -> None:
        for connection in self._resolving.pop((host, port)):
            if self._connections.get(connection.connection_id) is not connection:
                continue  # the core has ended this connection meanwhile
            connection.addresses = list(found or ())
            self._try_next_address(connection, "no address" if error is None else _reason(error))

    # Work in separate threads

    def _beside(self, function: Callable[[], Any], then: Callable[[Any, Exception | None], None]) -> None:
        """Call `function` in a separate thread. A later `handle` calls `then` with its value or its exception."""
        if self._finished_receiver is None:
            self._finished_receiver, self._finished_sender = socket.socketpair()
            self._finished_receiver.setblocking(False)
            self._finished_sender.setblocking(False)
            self._selector.register(self._finished_receiver, selectors.EVENT_READ, None)

        def run() -> None:
            value, error = None, None
            try:
                value = function()
            except Exception as raised:  # noqa: BLE001 - `then` handles the error
                error = raised
            self._finished.append(partial(then, value, error))
            self._wake_loop()

        threading.Thread(target=run, name="odradek-client-beside", daemon=True).start()

    def _wake_loop(self) -> None:
        assert self._finished_sender is not None
        try:
            self._finished_sender.send(b"\0")
        except BlockingIOError:
            return  # The pipe is full of earlier wake-ups, so the loop wakes up anyway.
        except OSError:
            if self._finished_sender.fileno() >= 0:
                raise
            # The sockets were closed meanwhile, so no caller waits for the result any longer.

    def _take_finished(self) -> None:
        assert self._finished_receiver is not None
        self._finished_receiver.recv(4096)
        while self._finished:
            self._finished.popleft()()

    def _computed(self, work: Work, value: Any, error: Exception | None) -> None:
        self._core.computed(work, value, error, time.monotonic())

    def _try_next_address(self, connection: _Connection, reason: str) -> None:
        """Start to connect to the next address of the host. Report a failure after the last address."""
        while connection.addresses:
            family, kind, proto, address = connection.addresses.pop(0)
            try:
                sock = socket.socket(family, kind, proto)
            except OSError as error:
                reason = _reason(error)
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _keep_alive(sock)
            connection.socket = sock
            try:
                sock.connect(address)
            except BlockingIOError:
                pass
            except OSError as error:
                reason = _reason(error)
                sock.close()
                connection.socket = None
                continue
            self._selector.register(sock, selectors.EVENT_WRITE, connection)
            return
        self._forget(connection)
        self._core.connect_failed(connection.connection_id, reason, time.monotonic())

    def _finish_connecting(self, connection: _Connection) -> None:
        assert connection.socket is not None
        code = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._selector.unregister(connection.socket)
            connection.socket.close()
            connection.socket = None
            self._try_next_address(connection, os.strerror(code))
            return
        connection.connected = True
        self._selector.modify(connection.socket, selectors.EVENT_READ, connection)
        if connection.new_session is not None:
            connection.tls = connection.new_session()
            self._shake_hands(connection, connection.tls)
            return
        self._core.connected(connection.connection_id, time.monotonic())

    def _shake_hands(self, connection: _Connection, tls: TlsSession) -> None:
        """Continue the TLS handshake. Report the connection to the core once it is done."""
        try:
            done = tls.handshake()
        except TlsFailed as error:
            self._fail_tls(connection, str(error))
            return
        self._send_encrypted(connection, tls)
        if done and connection.socket is not None:
            connection.has_shaken_hands = True
            self._core.connected(connection.connection_id, time.monotonic())
            self._read_decrypted(connection, tls, 0)

    def _fail_tls(self, connection: _Connection, reason: str) -> None:
        """End a connection whose peer violates TLS."""
        self._forget(connection)
        failed = self._core.connection_lost if connection.has_shaken_hands else self._core.connect_failed
        failed(connection.connection_id, f"TLS: {reason}", time.monotonic())

    def _send_encrypted(self, connection: _Connection, tls: TlsSession) -> None:
        """Send the bytes that TLS itself has produced. End the connection if the server causes many such
        bytes and reads none of them.
        """
        if not tls.outgoing:
            return
        said = tls.take()
        connection.answer_bytes = connection.answer_bytes + len(said) if connection.writing else 0
        if connection.answer_bytes > ANSWERS_BYTES_MAX:
            self._fail_tls(connection, "the peer does not read what the client sends")
            return
        connection.outgoing.append(memoryview(said))
        if not connection.writing:
            self._write(connection)

    def _receive_encrypted(self, connection: _Connection, tls: TlsSession, count: int) -> None:
        for begin in range(0, count, _FEED_BYTES):
            fed = min(_FEED_BYTES, count - begin)
            tls.feed(self._received[begin : begin + fed])
            if connection.has_shaken_hands:
                self._read_decrypted(connection, tls, fed)
            else:
                # The received bytes need no limit here: OpenSSL limits the size of each handshake message,
                # and accepts no other messages during a handshake.
                self._shake_hands(connection, tls)
            if connection.socket is None:
                return
        if count:
            return
        self._forget(connection)
        if connection.has_shaken_hands:
            self._core.receive_data(connection.connection_id, b"", time.monotonic())
        else:
            reason = "the peer closed the connection during the TLS handshake"
            self._core.connect_failed(connection.connection_id, reason, time.monotonic())

    def _read_decrypted(self, connection: _Connection, tls: TlsSession, fed: int) -> None:
        """Report all decrypted bytes to the core. `fed` is the number of encrypted bytes that arrived just now."""
        plain = 0
        while connection.socket is not None:
            try:
                count = tls.read_into(self._decrypted)
            except TlsFailed as error:
                self._fail_tls(connection, str(error))
                return
            if count is None:
                if connection.idle.allow(fed, plain):
                    self._send_encrypted(connection, tls)
                else:
                    self._fail_tls(connection, "the peer sends many TLS records without data")
                return
            if count == 0:
                self._forget(connection)
            plain += count
            self._core.receive_data(connection.connection_id, self._decrypted[:count], time.monotonic())

    def _send(self, connection_id: int, data: bytes | bytearray) -> None:
        connection = self._connections.get(connection_id)
        if connection is not None:
            if connection.tls is not None:
                connection.tls.write(data)
                data = connection.tls.take()
            connection.outgoing.append(memoryview(data))
            if not connection.writing:
                self._unsent[connection] = None

    def _write(self, connection: _Connection) -> None:
        sock = connection.socket
        assert sock is not None
        outgoing = connection.outgoing
        blocked = False
        try:
            while outgoing:
                drop_sent(outgoing, sock.sendmsg(list(islice(outgoing, _SEND_PIECES_MAX))))
        except BlockingIOError:
            blocked = True
        except OSError as error:
            self._lost(connection, error)
            return
        if blocked != connection.writing:
            connection.writing = blocked
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if blocked else 0)
            self._selector.modify(sock, events, connection)

    def _read(self, connection: _Connection) -> None:
        assert connection.socket is not None
        if connection.tls is not None:
            try:
                count = connection.socket.recv_into(self._received)
            except BlockingIOError:
                return
            except OSError as error:
                self._lost(connection, error)
                return
            self._receive_encrypted(connection, connection.tls, count)
            return
        place = self._core.place_for_data(connection.connection_id)
        try:
            count = connection.socket.recv_into(self._received if place is None else place)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(connection, error)
            return
        if not count:
            self._forget(connection)
        if place is not None and count:
            self._core.received_in_place(connection.connection_id, count, time.monotonic())
        else:
            self._core.receive_data(connection.connection_id, self._received[:count], time.monotonic())
        # Each wake-up of this thread takes the interpreter from the application's thread. So let the kernel
        # wake it seldom during a large answer.
        low_water = max(1, min(self._core.bytes_expected(connection.connection_id), _RECEIVE_BYTES))
        if low_water != connection.low_water and connection.socket is not None:
            connection.low_water = low_water
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)

    def _lost(self, connection: _Connection, error: OSError) -> None:
        self._forget(connection)
        self._core.connection_lost(connection.connection_id, _reason(error), time.monotonic())

    def _forget(self, connection: _Connection) -> None:
        self._connections.pop(connection.connection_id, None)
        if connection.socket is not None:
            self._selector.unregister(connection.socket)
            connection.socket.close()
            connection.socket = None


def _numeric(host: str, port: int) -> list[_Place]:
    """Return the socket address of a numeric host, which needs no resolver; otherwise an empty list."""
    for family, address in ((socket.AF_INET, (host, port)), (socket.AF_INET6, (host, port, 0, 0))):
        try:
            socket.inet_pton(family, host)
        except (OSError, UnicodeError, ValueError):
            continue
        return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, address)]
    return []


def _resolved(host: str, port: int) -> list[_Place]:
    """Resolve a host name to socket addresses; this takes as long as the system's resolver needs. Raises `OSError`,
    `UnicodeError`.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, kind, proto, address) for family, kind, proto, _, address in found]


def _keep_alive(sock: socket.socket) -> None:
    """Enable keepalives, so that the kernel detects a dead peer within half a minute, even while the client only
    waits.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # some systems lack an option
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
