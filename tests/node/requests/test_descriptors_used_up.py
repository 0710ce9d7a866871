"""A real node with a small open-file limit gets too many connections. It refuses clients and keeps working."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.metadata import MetadataRequest
from testkit.odradek_server import ODRADEK, prepare_odradek
from testkit.processes import ServerProcess, free_ports, spawn, wait_until_serving
from testkit.raw_requests import RawClient

DESCRIPTORS = 256
CONNECTIONS = 400
PATIENCE_MS = 60_000


@pytest.fixture
def small_node(tmp_path: Path) -> Iterator[tuple[ServerProcess, int, int]]:
    """A node with few file descriptors, and its ports for clients and for brokers."""
    clients, brokers, controllers = free_ports(3)
    names = {"PLAINTEXT": clients, "PEERS": brokers, "CONTROLLER": controllers}
    path = prepare_odradek(
        tmp_path / "n",
        settings={
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in names.items()),
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{clients},PEERS://127.0.0.1:{brokers}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PEERS:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PEERS",
            "controller.quorum.voters": f"1@127.0.0.1:{controllers}",
        },
    )
    server = spawn(
        "node",
        ["prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}", str(ODRADEK), "server", str(path)],
        bootstrap=f"127.0.0.1:{clients}",
        log_path=tmp_path / "server.log",
    )
    try:
        wait_until_serving(server, 60.0)
        yield server, clients, brokers
    finally:
        server.kill()


def is_closed(client: socket.socket) -> bool:
    client.settimeout(0.0)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def wait_for_closed(held: list[socket.socket], wanted: int) -> int:
    """Wait until the node has closed at least `wanted` of these connections; return how many it has closed."""
    waiting = {each.fileno(): each for each in held}
    poller = select.poll()
    for number in waiting:
        poller.register(number, select.POLLIN)
    while len(held) - len(waiting) < wanted:
        events = poller.poll(PATIENCE_MS)
        assert events, f"the node has closed only {len(held) - len(waiting)} of {len(held)} connections"
        for number, _ in events:
            if is_closed(waiting[number]):
                poller.unregister(number)
                del waiting[number]
    return len(held) - len(waiting)


def brokers_told(port: int) -> int:
    """Return the number of brokers in the node's Metadata. At first the node may refuse a new client."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while True:
        with RawClient(f"127.0.0.1:{port}") as client:
            try:
                return len(client.request(MetadataRequest([], False, False, False), 9).brokers)
            except ConnectionError:
                assert time.monotonic() < deadline, (
                    "the node still refuses a client after all others have left"
                )


def test_idle_connections_beyond_the_descriptors(small_node: tuple[ServerProcess, int, int]) -> None:
    """Clients beyond the limit are closed at accept, with a single log line. Brokers still connect, and new logs are
    created."""
    server, clients, brokers = small_node
    with ExitStack() as stack:
        held = []
        for _ in range(CONNECTIONS):
            held.append(stack.enter_context(socket.create_connection(("127.0.0.1", clients))))
        room = DESCRIPTORS - DESCRIPTORS // 4 - 64
        closed = wait_for_closed(held, CONNECTIONS - room)
        assert closed < CONNECTIONS
        peer = stack.enter_context(RawClient(f"127.0.0.1:{brokers}"))
        answer = peer.request(CreateTopicsRequest([CreatableTopic("t", 20, 1)], 30_000), 5)
        assert answer.topics[0].error_code == ErrorCode.NONE
        assert len(peer.request(MetadataRequest([], False, False, False), 9).brokers) == 1
    assert server.is_running(), server.log_tail()
    lines = [line for line in server.log_tail(1000).splitlines() if "connection.refused" in line]
    assert len(lines) == 1
    assert brokers_told(clients) == 1
