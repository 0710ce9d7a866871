"""Crowds at the console's HTTP server: they keep others out neither by reading slowly nor by asking much. The attackers come from 127.0.0.2."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import attrs
import trio

from odradek.console.http.http_server import Limits
from odradek.console.http.messages import Request, Response
from tests.console.http.served import Served, serving, status_of

BODY = bytes(8 << 20)


async def page(request: Request) -> Response:
    """Answer with more than the buffers of sockets take."""
    return Response(200, body=BODY if request.path == "/large" else b"small")


@contextmanager
def attackers(served: Served, count: int, target: str) -> Iterator[list[socket.socket]]:
    """Open connections from another address, which ask and do not read."""
    with ExitStack() as closing:
        opened = []
        for _ in range(count):
            connection = closing.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.bind(("127.0.0.2", 0))
            connection.settimeout(20)
            connection.connect(("127.0.0.1", served.port))
            connection.sendall(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            opened.append(connection)
        yield opened


def wait_for_busy(served: Served, count: int) -> None:
    """Wait until so many connections are busy."""
    deadline = time.monotonic() + 20
    while served.server.statistics()["busy"] < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_readers_who_take_nothing_keep_nobody_out() -> None:
    """When all connections send to peers that do not read, the oldest one of the largest network makes room."""
    with serving(page, Limits(connections_max=4)) as served, attackers(served, 4, "/large"):
        wait_for_busy(served, 4)
        for _ in range(3):
            assert status_of(served.get("/")) == 200
        assert served.server.statistics()["dropped"] >= 1


def test_a_reader_who_takes_too_little_is_dropped() -> None:
    """A peer that takes bytes again and again, but too few, loses its connection."""
    limits = Limits(stalled_seconds_max=0.5, slowest_bytes_per_second=len(BODY) * 2.0)
    with serving(page, limits) as served, attackers(served, 1, "/large") as (reader,):
        wait_for_busy(served, 1)
        deadline = time.monotonic() + 20
        while served.server.statistics()["busy"]:
            assert reader.recv(2048)
            time.sleep(0.02)
            assert time.monotonic() < deadline


@attrs.define
class Blocked:
    """Answers when it may go on."""

    go: threading.Event = attrs.field(factory=threading.Event)

    async def answer(self, request: Request) -> Response:
        if request.path == "/blocked":
            await trio.to_thread.run_sync(self.go.wait, 20)
        return Response(200, body=b"done")


def test_an_address_has_a_limited_number_of_busy_connections() -> None:
    """The third request at once of an address is refused with a sentence. Other addresses are served."""
    blocked = Blocked()
    limits = Limits(busy_max=2)
    with serving(blocked.answer, limits) as served, attackers(served, 2, "/blocked") as waiting:
        wait_for_busy(served, 2)
        with attackers(served, 1, "/") as (refused,):
            answer = refused.recv(4096)
            assert status_of(answer) == 503
            assert b"too many requests at once from this address" in answer
        assert status_of(served.get("/")) == 200
        blocked.go.set()
        assert [status_of(each.recv(4096)) for each in waiting] == [200, 200]


def test_readers_who_take_nothing_do_not_refuse_their_neighbours() -> None:
    """Somebody behind the same address, such as a proxy's, is served while others do not read their responses."""
    with (
        serving(page, Limits(busy_max=2)) as served,
        attackers(served, 4, "/large"),
        attackers(served, 1, "/") as (neighbour,),
    ):
        assert status_of(neighbour.recv(4096)) == 200
        wait_for_busy(served, 4)
