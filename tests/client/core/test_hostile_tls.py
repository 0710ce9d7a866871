"""A hostile server attacks the client by TLS. The client closes the connection."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from odradek.client.core.client_config import ClientConfig
from odradek.client.core.client_core import Connect
from odradek.client.core.client_security import ClientSecurity
from odradek.client.shells.sockets import Sockets
from odradek.env.tls_ports import TlsSettings
from odradek.security.idle_records import IDLE_BYTES_MAX
from tests.security.certificates import Authority
from tests.security.tls.tls_records import RawEnd, RecordWriter

AUTHORITY = Authority()
HOST = "127.0.0.1"
TIMEOUT_SECONDS = 60.0
SMALL_BYTES = 4096
"""The size of the client's send buffer in the kernel. A buffer of the usual size takes megabytes of answers."""


class Core:
    """A client's core that opens one connection, and records what happens to it."""

    tokens = None

    def __init__(self, port: int) -> None:
        tls = TlsSettings(truststore_certificates=AUTHORITY.pem)
        self.config = ClientConfig(security=ClientSecurity(tls=tls))
        self._effects: list[Any] = [Connect(1, HOST, port)]
        self.is_connected = False
        self.failure = ""
        self.received = bytearray()

    def effects(self) -> list[Any]:
        effects, self._effects = self._effects, []
        return effects

    def connected(self, connection_id: int, now: float) -> None:
        self.is_connected = True

    def connect_failed(self, connection_id: int, reason: str, now: float) -> None:
        self.failure = reason

    connection_lost = connect_failed

    def receive_data(self, connection_id: int, data: bytes | memoryview, now: float) -> None:
        self.received += data


def _attacked(tmp_path: Path, speak: Callable[[socket.socket, ssl.SSLContext], None]) -> Core:
    """Connect a client to a server that runs `speak`. Return the client's core after the connection is closed."""
    certificate = AUTHORITY.issue("server", (HOST,)).write(tmp_path / "server.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with socket.create_server((HOST, 0)) as listening:
        listening.settimeout(TIMEOUT_SECONDS)

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, suppress(ConnectionError):
                connection.settimeout(TIMEOUT_SECONDS)
                speak(connection, context)
                # Wait until the client closes the connection.
                while connection.recv(1 << 16):
                    pass

        server = threading.Thread(target=serve)
        server.start()
        core = Core(listening.getsockname()[1])
        sockets = Sockets(core)  # type: ignore[arg-type]
        sockets.perform_effects()
        while not core.failure:
            ready = sockets.select(TIMEOUT_SECONDS)
            assert ready, "the client neither reads nor closes the connection"
            for each in sockets._connections.values():
                if each.socket is not None:
                    each.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BYTES)
            sockets.handle(ready)
        sockets.close()
        server.join()
    return core


def _shaken(connection: socket.socket, context: ssl.SSLContext) -> RecordWriter:
    end = RawEnd(context, None)
    writer = None
    while writer is None:
        flight, writer = end.shake_hands(connection.recv(1 << 16))
        connection.sendall(flight)
    return writer


def test_key_updates_without_end(tmp_path: Path) -> None:
    """A server sends an endless flood of TLS key updates and no data. The client closes the connection early."""

    def speak(connection: socket.socket, context: ssl.SSLContext) -> None:
        connection.sendall(_shaken(connection, context).key_updates(2 * IDLE_BYTES_MAX // 27))

    core = _attacked(tmp_path, speak)
    assert core.is_connected
    assert "without data" in core.failure


def test_answers_that_the_server_does_not_take(tmp_path: Path) -> None:
    """A server requests key updates, and never reads the answers.

    The client closes the connection before the answers fill its memory.
    """

    def speak(connection: socket.socket, context: ssl.SSLContext) -> None:
        writer = _shaken(connection, context)
        # Data in between, so that the client does not close the connection for a flood without data.
        flood = b"".join(
            writer.record(bytes(27 * 10)) + writer.key_updates(10, ask_for_others=True) for _ in range(3_000)
        )
        connection.sendall(flood)
        # The server never reads the client's answers, even if the client has read the whole flood.
        left = select.poll()
        left.register(connection, select.POLLRDHUP)
        left.poll(TIMEOUT_SECONDS * 1000)

    core = _attacked(tmp_path, speak)
    assert "does not read what" in core.failure
    assert 10 * 27 * 100 < len(core.received) < 10 * 27 * 3_000
