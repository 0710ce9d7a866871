"""An HTTP server of the console in a thread of the test's process, and a client of raw bytes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import attrs
import trio

from odradek.console.http.http_server import Encryption, HttpServer, Limits
from odradek.console.http.messages import Request, Response
from odradek.console.http.request_rules import SECURITY_HEADERS
from odradek.env.ports import TaskGroup
from odradek.env.real import RealEnv
from odradek.env.real_net import TcpListener, listening_socket

SOCKET_SECONDS = 20.0
BRIEF = Limits(linger_seconds_max=0.1)
QUICK = Limits(connections_max=4, request_seconds_max=0.4, idle_seconds_max=0.8, stalled_seconds_max=0.5)
"""Limits that a test can wait for."""


class Lines:
    """A log that keeps the names of its events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def info(self, event: str, /, **fields: object) -> None:
        self.events.append(event)

    warning = error = exception = info


@attrs.define
class Served:
    """A server that runs."""

    port: int
    server: HttpServer
    log: Lines

    def connect(self) -> socket.socket:
        """Connect to the server."""
        return socket.create_connection(("127.0.0.1", self.port), SOCKET_SECONDS)

    def ask(self, data: bytes) -> bytes:
        """Send bytes, and return all that the server sends until it closes."""
        with self.connect() as connection:
            connection.sendall(data)
            return read_all(connection)

    def get(self, target: str, *headers: str) -> bytes:
        """Ask for an address, and return the whole response."""
        lines = [
            f"GET {target} HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            *headers,
            "Connection: close",
            "",
            "",
        ]
        return self.ask("\r\n".join(lines).encode("latin-1"))


Answer = Callable[[Request], Awaitable[Response]]
Making = Callable[[RealEnv, TaskGroup, Lines], Answer]
Encrypting = Callable[[RealEnv, Lines], "Encryption | None"]


@contextmanager
def serving(
    answer: Making | Answer,
    limits: Limits | None = None,
    *,
    makes: bool = False,
    encrypting: Encrypting | None = None,
) -> Iterator[Served]:
    """Serve by this function in a thread. With `makes`, `answer` makes the function from the ports first. `encrypting` makes
    the TLS of the listener.
    """
    listening = listening_socket("127.0.0.1", 0)
    ready = threading.Event()
    found: list[Served] = []
    token: list[trio.lowlevel.TrioToken] = []
    scope = trio.CancelScope()
    failure: list[BaseException] = []

    async def main() -> None:
        env, log = RealEnv(), Lines()
        with scope:
            async with trio.open_nursery() as tasks:
                answers: Answer = answer(env, tasks, log) if makes else answer  # type: ignore[call-arg,arg-type,assignment]
                listener = TcpListener(listening)
                server = HttpServer(
                    listener,
                    answers,
                    clock=env.clock,
                    tasks=tasks,
                    log=log,
                    encryption=None if encrypting is None else encrypting(env, log),
                    limits=limits or BRIEF,
                    always=SECURITY_HEADERS,
                )
                token.append(trio.lowlevel.current_trio_token())
                found.append(Served(listener.port, server, log))
                ready.set()
                try:
                    await server.accept_loop()
                finally:
                    server.close()

    def run() -> None:
        try:
            trio.run(main)
        except BaseException as error:  # noqa: BLE001 - raised in the test
            failure.append(error)
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        if failure:
            raise failure[0]
        yield found[0]
    finally:
        if token:
            try:
                token[0].run_sync_soon(scope.cancel)
            except trio.RunFinishedError:
                assert failure
        thread.join()
        if failure:
            raise failure[0]


def read_all(connection: socket.socket) -> bytes:
    """Read until the server closes."""
    data = b""
    while True:
        try:
            piece = connection.recv(65536)
        except ConnectionResetError:
            return data
        if not piece:
            return data
        data += piece


def status_of(response: bytes) -> int:
    """Return the status of a response; 0 if there is none."""
    return int(response.split(b" ", 2)[1]) if response.startswith(b"HTTP/1.1 ") else 0


def body_of(response: bytes) -> bytes:
    """Return the body of a response."""
    return response.partition(b"\r\n\r\n")[2]
