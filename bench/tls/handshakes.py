"""A client that makes TLS handshakes and disconnects: as fast as possible, or at a given rate.

`python -m bench.tls.handshakes JSON` for `bench.instruments.supervised`. Each handshake is full: no session is
resumed.

An attacker can do this more cheaply. With `hellos`, one recorded ClientHello is sent repeatedly, each time with
another random. The server answers with its key share, certificate and signature, which is most of a handshake's cost.
The attacker reads the answer and disconnects, without computing.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import attrs
import cattrs

from odradek.wire.api_keys import ApiKey
from odradek.wire.messages.api_versions import ApiVersionsRequest
from testkit.processes import command_prefix
from testkit.raw_requests import framed

CONNECTIONS = 2
PACED_CONNECTIONS = 4_000
TIMEOUT_SECONDS = 20.0
_RANDOM = slice(11, 43)
"""The position of the random in a ClientHello: after the headers of record and message, and the version (RFC 8446,
section 4.1.2).
"""
_HANDSHAKE = b"\x16"


@attrs.frozen
class Handshaking:
    """The task: the number of handshakes, and their rate per second. With the number 0, handshakes are made until
    standard input ends. With the rate 0, they are made as fast as possible.
    """

    address: str
    authority: str
    count: int
    per_second: float = 0.0
    hellos: bool = False
    """True to send a recorded ClientHello, and nothing after the server's answer."""


@attrs.frozen
class Shaken:
    """The number of completed and failed handshakes, and the seconds that they took. With a recorded hello, a
    handshake counts as completed at the server's answer.
    """

    begun: int
    """The number of handshakes that were begun; some of them may not have ended."""
    done: int
    failed: int
    seconds: float


def open_tls_connection(address: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Connect to an address, and complete the TLS handshake."""
    host, _, port = address.rpartition(":")
    plain = socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def ask_api_versions(connection: ssl.SSLSocket) -> None:
    """Send one ApiVersions request and receive its answer."""
    connection.sendall(framed(ApiKey.API_VERSIONS, 3, ApiVersionsRequest("bench", "1.0")))
    size = int.from_bytes(_exactly(connection, 4))
    _exactly(connection, size)


def _exactly(connection: ssl.SSLSocket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("closed")
        data += part
    return data


@contextmanager
def flood(task: Handshaking, into: list[Shaken], cpus: Sequence[int] | None) -> Iterator[None]:
    """Run a process on `cpus` that makes handshakes during the block. Its result is added to `into`."""
    command = [
        *command_prefix(cpus),
        sys.executable,
        "-m",
        "bench.tls.handshakes",
        json.dumps(attrs.asdict(task)),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        process.stdin.write("go\n")
        process.stdin.flush()
        yield
        process.stdin.close()
        into.append(cattrs.structure(json.loads(process.stdout.readline()), Shaken))


def recorded_hello() -> bytearray:
    """Return the first TLS record of a client: a ClientHello of TLSv1.3 with a key share."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return bytearray(outgoing.read())


class Shaker:
    """Makes the handshakes of one task, many at a time, in one thread."""

    def __init__(self, task: Handshaking, is_over: threading.Event) -> None:
        self._task = task
        self._is_over = is_over
        host, _, port = task.address.rpartition(":")
        self._address = (host, int(port))
        self._context = ssl.create_default_context(cafile=task.authority)
        # An attacker does not verify the server.
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        self._selector = selectors.DefaultSelector()
        self._under_way: dict[socket.socket, float] = {}
        self._greeted: set[socket.socket] = set()
        """Connections on which the ClientHello was sent."""
        self._hello = recorded_hello() if task.hellos else None
        self.begun = self.done = self.failed = 0

    def run(self) -> Shaken:
        """Make all handshakes of the task, or as many as possible until it ends."""
        began = time.monotonic()
        task = self._task
        at_once = PACED_CONNECTIONS if task.per_second else CONNECTIONS
        while not self._is_over.is_set() and (not task.count or self.done + self.failed < task.count):
            now = time.monotonic()
            while (
                len(self._under_way) < at_once
                and (not task.count or self.begun < task.count)
                and (not task.per_second or self.begun <= (now - began) * task.per_second)
            ):
                self._begin(now)
            for key, _ in self._selector.select(0.001 if task.per_second else 1.0):
                self._go_on(key.fileobj)
            for connection in [each for each, at in self._under_way.items() if now - at > TIMEOUT_SECONDS]:
                self._end(connection, is_done=False)
        return Shaken(self.begun, self.done, self.failed, time.monotonic() - began)

    def _begin(self, now: float) -> None:
        self.begun += 1
        plain = socket.socket()
        plain.setblocking(False)
        plain.connect_ex(self._address)
        self._under_way[plain] = now
        self._selector.register(plain, selectors.EVENT_WRITE)

    def _go_on(self, connection: Any) -> None:
        if self._hello is not None:
            self._replay(connection, self._hello)
            return
        try:
            if not isinstance(connection, ssl.SSLSocket):
                connection = self._encrypted(connection)
            connection.do_handshake()
        except ssl.SSLWantReadError:
            self._selector.modify(connection, selectors.EVENT_READ)
        except OSError:
            self._end(connection, is_done=False)
        else:
            self._end(connection, is_done=True)

    def _replay(self, connection: socket.socket, hello: bytearray) -> None:
        """Send the ClientHello, then read the server's answer or the end of the connection."""
        try:
            if connection in self._greeted:
                answer = connection.recv(1 << 14)
                self._greeted.discard(connection)
                self._end(connection, is_done=answer[:1] == _HANDSHAKE)
                return
            hello[_RANDOM] = os.urandom(_RANDOM.stop - _RANDOM.start)
            connection.send(hello)
        except OSError:
            self._greeted.discard(connection)
            self._end(connection, is_done=False)
            return
        self._greeted.add(connection)
        self._selector.modify(connection, selectors.EVENT_READ)

    def _encrypted(self, plain: socket.socket) -> ssl.SSLSocket:
        """Begin TLS on a connection that is established now. Raises `OSError` if connecting failed."""
        plain.getpeername()
        began = self._under_way.pop(plain)
        self._selector.unregister(plain)
        connection = self._context.wrap_socket(plain, do_handshake_on_connect=False)
        self._under_way[connection] = began
        self._selector.register(connection, selectors.EVENT_WRITE)
        return connection

    def _end(self, connection: socket.socket, *, is_done: bool) -> None:
        self.done += is_done
        self.failed += not is_done
        self._selector.unregister(connection)
        del self._under_way[connection]
        connection.close()


def main() -> None:
    """Run the task in the only argument, and print its result as JSON."""
    task = cattrs.structure(json.loads(sys.argv[1]), Handshaking)
    is_over = threading.Event()
    print("ready", flush=True)
    if not sys.stdin.readline():
        raise SystemExit("the parent is gone")

    def wait_for_end() -> None:
        with suppress(ValueError):
            sys.stdin.read()
        is_over.set()

    if not task.count:
        threading.Thread(target=wait_for_end, daemon=True).start()
    print(json.dumps(attrs.asdict(Shaker(task, is_over).run())), flush=True)


if __name__ == "__main__":
    main()
