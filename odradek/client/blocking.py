"""The blocking client: the core over non-blocking sockets and a selector, in the caller's thread. SHELL.

Every method runs one operation to its end and returns its result, or raises `wire.errors.KafkaError` (a broker
answered with an error code) or `odradek.client.errors.ClientError` (nobody answered). Not for several threads at
a time. Nothing runs between calls: a connection that a broker closed meanwhile is opened again when it is needed.
"""

from __future__ import annotations

import os
import random
import selectors
import socket
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import attrs

from odradek.client import admin, offsets
from odradek.client.bootstrap import parse_bootstrap
from odradek.client.cluster import Cluster, Topic
from odradek.client.config import ClientConfig
from odradek.client.core import ClientCore, Close, Connect, Send
from odradek.client.operation import Operation, Task
from odradek.client.requests import refresh_metadata, request
from wire.errors import KafkaError

__all__ = ["Client"]

T = TypeVar("T")
_RECEIVE_BYTES = 1 << 18


class _Connection:
    """One socket; `addresses` are those still to be tried."""

    def __init__(self, connection_id: int, addresses: list[tuple[Any, ...]]) -> None:
        self.connection_id = connection_id
        self.addresses = addresses
        self.socket: socket.socket | None = None
        self.connected = False
        self.outgoing: deque[memoryview] = deque()


class Client:
    """A client of the cluster that answers at `bootstrap` ("host:port,host:port").

    Use it as a context manager, or call `close`.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "odradek",
        timeout_ms: int = 30000,
        config: ClientConfig | None = None,
    ) -> None:
        """Opens nothing yet. Raises `ValueError` for a `bootstrap` that is no list of addresses."""
        if config is None:
            config = ClientConfig(client_id=client_id, request_timeout=timeout_ms / 1000)
        self.timeout = timeout_ms / 1000
        self.core = ClientCore(
            parse_bootstrap(bootstrap), config, random.Random(os.urandom(16)), now=time.monotonic()
        )
        self.admin = Admin(self)
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, _Connection] = {}

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Safe to call twice."""
        self.core.close()
        self._perform_effects()
        self._selector.close()

    def run(self, operation: Operation[T]) -> T:
        """Run an operation of the core to its end; see `odradek.client.operation`."""
        self.core.tick(time.monotonic())
        task = self.core.start(operation, time.monotonic())
        try:
            self._run_until_done(task)
        finally:
            if not task.done:
                self.core.abandon(task)
        return task.result()

    def request(self, message: Any, *, node: int | None = None, timeout_ms: int | None = None) -> Any:
        """Send one request message (of `wire.messages`) to broker `node`, or to any, and return its response."""
        timeout = self.timeout if timeout_ms is None else timeout_ms / 1000
        if node is not None and node not in self.core.cluster.brokers:
            self.metadata([])
        return self.run(request(self.core, message, node=node, timeout=timeout))

    def metadata(self, topics: Sequence[str] | None = None) -> Cluster:
        """Fresh metadata of these topics (None: of all) and of the brokers."""
        return self.run(refresh_metadata(self.core, topics, timeout=self.timeout))

    def list_offsets(
        self, wanted: Mapping[tuple[str, int], int]
    ) -> dict[tuple[str, int], offsets.ListedOffset]:
        """See `odradek.client.offsets.list_offsets`."""
        return self.run(offsets.list_offsets(self.core, wanted, timeout=self.timeout))

    # The loop

    def _run_until_done(self, task: Task[Any]) -> None:
        self._perform_effects()
        while not task.done:
            deadline = self.core.next_deadline()
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            for key, events in self._selector.select(wait):
                connection: _Connection = key.data
                if not connection.connected:
                    self._finish_connecting(connection)
                else:
                    if events & selectors.EVENT_WRITE:
                        self._write(connection)
                    if events & selectors.EVENT_READ and connection.socket is not None:
                        self._read(connection)
            self.core.tick(time.monotonic())
            self._perform_effects()

    def _perform_effects(self) -> None:
        while effects := self.core.effects():
            for effect in effects:
                match effect:
                    case Connect(connection_id, host, port):
                        self._connect(connection_id, host, port)
                    case Send(connection_id, data):
                        self._send(connection_id, data)
                    case Close(connection_id):
                        connection = self._connections.get(connection_id)
                        if connection is not None:
                            self._forget(connection)

    def _connect(self, connection_id: int, host: str, port: int) -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            self.core.connect_failed(connection_id, _reason(error), time.monotonic())
            return
        connection = _Connection(
            connection_id, [(family, kind, proto, a) for family, kind, proto, _, a in found]
        )
        self._connections[connection_id] = connection
        self._try_next_address(connection, "no address")

    def _try_next_address(self, connection: _Connection, reason: str) -> None:
        """Begin to connect to the next address of the host; report failure after the last."""
        while connection.addresses:
            family, kind, proto, address = connection.addresses.pop(0)
            try:
                sock = socket.socket(family, kind, proto)
            except OSError as error:
                reason = _reason(error)
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
        self.core.connect_failed(connection.connection_id, reason, time.monotonic())

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
        self.core.connected(connection.connection_id, time.monotonic())

    def _send(self, connection_id: int, data: bytes | bytearray) -> None:
        connection = self._connections.get(connection_id)
        if connection is not None:
            connection.outgoing.append(memoryview(data))
            if len(connection.outgoing) == 1:
                self._write(connection)

    def _write(self, connection: _Connection) -> None:
        sock = connection.socket
        assert sock is not None
        outgoing = connection.outgoing
        try:
            while outgoing:
                count = sock.send(outgoing[0])
                if count == len(outgoing[0]):
                    outgoing.popleft()
                else:
                    outgoing[0] = outgoing[0][count:]
        except BlockingIOError:
            self._selector.modify(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)
            return
        except OSError as error:
            self._lost(connection, error)
            return
        self._selector.modify(sock, selectors.EVENT_READ, connection)

    def _read(self, connection: _Connection) -> None:
        assert connection.socket is not None
        try:
            data = connection.socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(connection, error)
            return
        if not data:
            self._forget(connection)
        self.core.receive_data(connection.connection_id, data, time.monotonic())

    def _lost(self, connection: _Connection, error: OSError) -> None:
        self._forget(connection)
        self.core.connection_lost(connection.connection_id, _reason(error), time.monotonic())

    def _forget(self, connection: _Connection) -> None:
        self._connections.pop(connection.connection_id, None)
        if connection.socket is not None:
            self._selector.unregister(connection.socket)
            connection.socket.close()
            connection.socket = None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


@attrs.frozen
class Admin:
    """Administration through a `Client`; the operations are those of `odradek.client.admin`."""

    _client: Client = attrs.field(repr=False)

    def create_topics(
        self, topics: Sequence[admin.NewTopic], *, validate_only: bool = False
    ) -> list[admin.CreatedTopic]:
        """Create topics; each outcome holds its own error."""
        client = self._client
        return client.run(
            admin.create_topics(client.core, topics, timeout=client.timeout, validate_only=validate_only)
        )

    def delete_topics(self, names: Sequence[str]) -> list[tuple[str, KafkaError | None]]:
        """Delete topics; the error or None for each name."""
        client = self._client
        return client.run(admin.delete_topics(client.core, names, timeout=client.timeout))

    def describe_topics(self, names: Iterable[str] | None = None) -> list[Topic]:
        """Topics with their partitions; None: all of them."""
        client = self._client
        wanted = None if names is None else list(names)
        return client.run(admin.describe_topics(client.core, wanted, timeout=client.timeout))

    def describe_cluster(self) -> admin.ClusterDescription:
        """Id, controller and brokers."""
        client = self._client
        return client.run(admin.describe_cluster(client.core, timeout=client.timeout))

    def describe_configs(
        self, resource_type: admin.ResourceType, name: str, keys: Sequence[str] | None = None
    ) -> list[admin.ConfigEntry]:
        """The effective configuration of a topic or broker."""
        client = self._client
        return client.run(
            admin.describe_configs(client.core, resource_type, name, keys, timeout=client.timeout)
        )
