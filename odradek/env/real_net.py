"""TCP of this machine: non-blocking sockets, with trio's waits for readable and writable. SHELL.

Theory of operation
-------------------
A `TcpConn` is part of the hot path. A wait is one epoll round, a receive is one `recv_into`, and an answer is
one `send`. Bound methods of the socket are not stored. Looking a method up costs 20 ns, but storing it costs
80 bytes for each idle connection.

`send(..., more=True)` lets the kernel hold back the last bytes (MSG_MORE) until the following bytes are sent.
The following bytes come from a `send` without `more`, or from a `sendfile`, which sends everything with its
last page. If the file is shorter than expected, `sendfile` raises `DiskError` and the caller closes the
connection.

Exceptions of trio and of the system are translated. If a connection is closed while a task waits for it, the task
gets `ConnectionLost`, as after a reset.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
from collections.abc import Sequence
from typing import Any

import trio
from trio.lowlevel import notify_closing, wait_readable, wait_writable

from odradek.env.ports import Buffer, ConnectionLost, ConnectionRefused, DiskError, File, PeerEnd
from odradek.env.real_descriptors import disk_error
from odradek.env.real_files import RealFile

BACKLOG = 1024
_IOV_MAX = os.sysconf("SC_IOV_MAX") if "SC_IOV_MAX" in os.sysconf_names else 1024
_ACCEPT_BACKOFF_SECONDS = 0.1

_DESCRIPTORS_USED_UP = frozenset({errno.EMFILE, errno.ENFILE})
_MEMORY_USED_UP = frozenset({errno.ENOBUFS, errno.ENOMEM})
_PEER_GONE = frozenset(
    {
        errno.EPIPE,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.ESHUTDOWN,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENETRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EBADF,
        errno.ENOBUFS,
        errno.ENOMEM,
    }
)


class TcpConn:
    """Implements `odradek.env.ports.Conn` with a connected, non-blocking socket."""

    __slots__ = ("_fd", "_socket", "peer_host", "peer_port")

    def __init__(self, connected: socket.socket, peer_host: str, peer_port: int) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = connected
        self._fd = connected.fileno()
        # As in Java, an IPv4 peer of an IPv6 listener is shown with its IPv4 address, because rules and quotas for
        # hosts use that address.
        self.peer_host = sys.intern(peer_host.removeprefix("::ffff:"))
        self.peer_port = peer_port

    async def readable(self) -> None:
        try:
            await wait_readable(self._fd)
        except (trio.ClosedResourceError, OSError, ValueError) as error:
            raise ConnectionLost("this node closed the connection while it waited for bytes") from error
        except trio.BusyResourceError as error:
            self._fail_if_open(error)
            raise ConnectionLost("this node closed the connection before it waited for bytes") from error

    async def writable(self) -> None:
        try:
            await wait_writable(self._fd)
        except (trio.ClosedResourceError, OSError, ValueError) as error:
            raise ConnectionLost("this node closed the connection while it waited to send") from error
        except trio.BusyResourceError as error:
            self._fail_if_open(error)
            raise ConnectionLost("this node closed the connection before it waited to send") from error

    def _fail_if_open(self, error: trio.BusyResourceError) -> None:
        """Raise the error, unless this connection is closed: trio remembers the first task that waits for the
        descriptor -1, and takes it for busy ever after.
        """
        if self._fd >= 0:
            raise error

    def wait_for(self, count: int) -> None:
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def recv_into(self, buffer: memoryview) -> int | None:
        try:
            return self._socket.recv_into(buffer)
        except BlockingIOError:
            return None
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def peer_end(self) -> PeerEnd:
        try:
            if not self._socket.recv(1, socket.MSG_PEEK):
                return PeerEnd.ENDED
        except BlockingIOError:
            return PeerEnd.OPEN
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        # `poll` is used because MSG_PEEK sees unread bytes first, and does not show the end of the stream or
        # a reset behind them.
        poll = select.poll()
        poll.register(self._fd, select.POLLRDHUP)
        for _, event in poll.poll(0):
            if event & (select.POLLERR | select.POLLNVAL):
                raise ConnectionLost("the peer reset the connection")
            return PeerEnd.BEHIND_DATA
        return PeerEnd.OPEN

    def send(self, chunks: Sequence[Buffer], more: bool = False) -> int:
        try:
            if len(chunks) == 1:
                return self._socket.send(chunks[0], socket.MSG_MORE if more else 0)
            if len(chunks) > _IOV_MAX:
                chunks, more = chunks[:_IOV_MAX], True
            return self._socket.sendmsg(chunks, (), socket.MSG_MORE if more else 0)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def sendfile(self, file: File, offset: int, count: int) -> int:
        if not isinstance(file, RealFile):
            raise TypeError(f"{file!r} is not a file of this machine")
        try:
            taken = os.sendfile(self._fd, file.fileno(), offset, count)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno in _PEER_GONE:
                raise ConnectionLost(str(error)) from error
            raise disk_error(file.directory, file.path, "read", error) from error
        if taken == 0 and count > 0:
            raise DiskError(
                file.directory,
                file.path,
                "read",
                0,
                f"the file ends before position {offset + count}, up to which bytes were to be sent",
            )
        return taken

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            notify_closing(fd)
            self._socket.close()


class TcpListener:
    """Implements `odradek.env.ports.Listener`. It keeps a spare descriptor, with which it can accept and close
    connections when all others are in use.
    """

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening
        self._reserve: int = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.port: int = listening.getsockname()[1]

    async def accept(self) -> TcpConn:
        while True:
            try:
                await wait_readable(self._socket)
            except OSError as error:
                if self._socket.fileno() < 0:
                    raise ConnectionLost("the listener is closed") from error
                # The event loop has no memory for the wait just now.
                await trio.sleep(_ACCEPT_BACKOFF_SECONDS)
                continue
            except (trio.ClosedResourceError, ValueError) as error:
                raise ConnectionLost("the listener is closed") from error
            except trio.BusyResourceError as error:
                # As for connections, a closed one is no longer busy.
                if self._socket.fileno() >= 0:
                    raise
                raise ConnectionLost("the listener is closed") from error
            try:
                connected, address = self._socket.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                await self._survive(error)
                continue
            try:
                return TcpConn(connected, address[0], address[1])
            except OSError:  # the peer left before its options were set
                connected.close()

    async def _survive(self, error: OSError) -> None:
        """Handle a failed accept. Errors that `accept(2)` reports about the network of a single peer are
        ignored.
        """
        if self._socket.fileno() < 0:
            raise ConnectionLost("the listener is closed") from error
        if error.errno in _DESCRIPTORS_USED_UP and self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1
            try:
                refused, _ = self._socket.accept()
                refused.close()
            except OSError:
                await trio.sleep(_ACCEPT_BACKOFF_SECONDS)
            self._refill_reserve()
        elif error.errno in _DESCRIPTORS_USED_UP or error.errno in _MEMORY_USED_UP:
            await trio.sleep(_ACCEPT_BACKOFF_SECONDS)
            self._refill_reserve()

    def _refill_reserve(self) -> None:
        if self._reserve < 0:
            try:
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._reserve = -1  # wait until descriptors are free again

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            notify_closing(self._socket)
            self._socket.close()
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1


class TcpNetwork:
    """Implements `odradek.env.ports.Network`. `maxseg` limits the segment size, for benchmarks on loopback."""

    def __init__(self, maxseg: int | None = None) -> None:
        self._maxseg = maxseg

    def listen(
        self,
        host: str,
        port: int,
        *,
        send_buffer_bytes: int | None = None,
        receive_buffer_bytes: int | None = None,
    ) -> TcpListener:
        listening = listening_socket(
            host,
            port,
            send_buffer_bytes=send_buffer_bytes,
            receive_buffer_bytes=receive_buffer_bytes,
            maxseg=self._maxseg,
        )
        try:
            return TcpListener(listening)
        except OSError:
            listening.close()
            raise

    async def connect(self, host: str, port: int, *, address: str | None = None) -> TcpConn:
        reason: OSError | None = None
        is_refused = True
        for family, kind, protocol, _, each in await self._resolve(address or host, port):
            try:
                return await self._connect_one(family, kind, protocol, each)
            except OSError as error:
                reason = error
                is_refused &= error.errno == errno.ECONNREFUSED
        kind_of_loss = ConnectionRefused if reason is not None and is_refused else ConnectionLost
        raise kind_of_loss(f"cannot connect to {host}:{port}: {reason}") from reason

    async def addresses_of(self, host: str, port: int) -> tuple[str, ...]:
        """Return all IP addresses of a host name. Raises `ConnectionLost`."""
        return tuple(dict.fromkeys(str(each[4][0]) for each in await self._resolve(host, port)))

    @staticmethod
    async def _resolve(host: str, port: int) -> list[tuple[Any, ...]]:
        """Resolve a host name to socket addresses. Raises `ConnectionLost`."""
        try:
            return list(await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError, RuntimeError, MemoryError) as error:
            # The reason may be a `RuntimeError`, because the name is resolved in a thread, which the system
            # may be unable to start.
            raise ConnectionLost(f"cannot connect to {host}:{port}: {error}") from error

    async def _connect_one(self, family: int, kind: int, protocol: int, address: tuple[Any, ...]) -> TcpConn:
        """Connect to one address. Raises `OSError`."""
        connecting = self._socket(family, kind, protocol)
        try:
            number = connecting.connect_ex(address)
            if number == errno.EINPROGRESS:
                await wait_writable(connecting)
                number = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                raise OSError(number, os.strerror(number))
            return TcpConn(connecting, str(address[0]), int(address[1]))
        except BaseException:
            connecting.close()
            raise

    def _socket(self, family: int, kind: int, protocol: int) -> socket.socket:
        return _new_socket(family, kind, protocol, self._maxseg)


def _new_socket(family: int, kind: int, protocol: int, maxseg: int | None) -> socket.socket:
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    if maxseg is not None:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, maxseg)
    return made


def listening_socket(
    host: str,
    port: int,
    *,
    send_buffer_bytes: int | None = None,
    receive_buffer_bytes: int | None = None,
    maxseg: int | None = None,
) -> socket.socket:
    """Open a non-blocking listening socket; an empty host means every interface. Raises `OSError`."""
    found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    listening = _new_socket(family, kind, protocol, maxseg)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Accepted sockets inherit both sizes from the listening socket, so no system calls per connection
        # are needed.
        if send_buffer_bytes is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        if receive_buffer_bytes is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
