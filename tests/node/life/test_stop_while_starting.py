"""SIGTERM stops a node in every phase of its start. Each test keeps a real process in one phase."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from odradek.cli.commands.storage import format_storage_of
from odradek.data_plane.log.directory.checkpoints import CLEAN_SHUTDOWN_FILE
from odradek.wire.api_keys import ApiKey
from testkit.odradek_server import ODRADEK
from testkit.processes import ServerProcess, free_ports, spawn
from tests.node.requests.test_bad_batches import good_batch

PATIENCE_SECONDS = 60.0
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
BATCHES = 200_000
"""Batches of one record each. Recovery needs some seconds for them."""


def format_node(directory: Path, settings: Mapping[str, str]) -> Path:
    """Format a node whose data is in `directory`/data; return the path of its properties."""
    directory.mkdir()
    path = directory / "server.properties"
    settings = {"log.dirs": str(directory / "data"), **settings}
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    format_storage_of(str(path), cluster_id=CLUSTER_ID, ignore_formatted=False)
    return path


@contextlib.contextmanager
def running(path: Path) -> Iterator[ServerProcess]:
    """Run a node with these properties and a new log file. Kill it at the end if it still runs."""
    log = path.with_name("server.log")
    log.unlink(missing_ok=True)
    server = spawn("node", [ODRADEK, "server", path], bootstrap="", log_path=log)
    try:
        yield server
    finally:
        server.process.send_signal(signal.SIGCONT)
        server.kill()


def wait_until(what: str, look: Callable[[], bool], server: ServerProcess) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not look():
        assert server.is_running(), server.log_tail()
        assert time.monotonic() < deadline, f"gave up waiting: {what}: {server.log_tail()}"
        time.sleep(0.002)


def wait_for_line(server: ServerProcess, *words: str) -> None:
    wait_until(
        " ".join(words),
        lambda: any(all(word in line for word in words) for line in server.log_tail(1000).splitlines()),
        server,
    )


def terminate(server: ServerProcess) -> tuple[int, str]:
    """Send SIGTERM once and wait; return the exit status and the node's log.

    Raises `AssertionError` if it keeps running.
    """
    server.process.send_signal(signal.SIGTERM)
    try:
        status = server.process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"the node still runs after SIGTERM: {server.log_tail()}") from error
    return status, server.log_tail(1000)


def lone(directory: Path) -> Path:
    """Format a single node that is broker and controller; return the path of its properties."""
    port, controller = free_ports(2)
    return format_node(
        directory,
        {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
        },
    )


def lone_controller(directory: Path, port: int, advertised_port: int) -> Path:
    return format_node(
        directory,
        {
            "process.roles": "controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{port}",
            "listeners": f"CONTROLLER://127.0.0.1:{port}",
            "advertised.listeners": f"CONTROLLER://127.0.0.1:{advertised_port}",
            "controller.listener.names": "CONTROLLER",
        },
    )


def lone_broker(directory: Path, controller_port: int) -> Path:
    return format_node(
        directory,
        {
            "process.roles": "broker",
            "node.id": "2",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{free_ports(1)[0]}",
            "controller.listener.names": "CONTROLLER",
        },
    )


class Forwarder:
    """A proxy between a broker and its controller. It holds back each request of one API, and everything after it."""

    def __init__(self, port: int, target_port: int, kept_back: ApiKey | None = None) -> None:
        self._target_port = target_port
        self._kept_back = kept_back
        self.has_kept_back = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target_port))
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answers, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError), client.makefile("rb") as stream:
            while head := stream.read(6):
                size, api_key = struct.unpack(">ih", head)
                body = stream.read(size - 2)
                if api_key == self._kept_back:
                    self.has_kept_back.set()
                    return
                server.sendall(head + body)

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)

    def close(self) -> None:
        self._listener.close()


def test_waiting_for_the_quorum(tmp_path: Path) -> None:
    """A broker that waits for a controller stops on SIGTERM, and keeps the clean-shutdown marker of its last run."""
    ports = free_ports(2)
    controller, broker = (
        lone_controller(tmp_path / "c", ports[0], ports[0]),
        lone_broker(tmp_path / "b", ports[0]),
    )
    marker = tmp_path / "b" / "data" / CLEAN_SHUTDOWN_FILE
    with running(controller) as first:
        wait_for_line(first, "node.ready")
        with running(broker) as second:
            wait_for_line(second, "node.ready")
            assert terminate(second)[0] == 0
    before = marker.read_bytes()
    with running(broker) as second:
        wait_for_line(second, "node.waiting")
        status, log = terminate(second)
    assert status == 0
    assert "node.stopped" in log
    assert marker.read_bytes() == before


def big_log(path: Path) -> tuple[Path, int]:
    """Give the lone node an unclean log of many small batches; return its segment and end offset."""
    batch = bytearray(good_batch(1, timestamp_ms=1))
    directory = path.parent / "data" / "big-0"
    segment = directory / f"{0:020}.log"
    with running(path) as server:
        wait_for_line(server, "node.ready")
        bootstrap = path.read_text().split("PLAINTEXT://", 1)[1].split(",", 1)[0]
        subprocess.run(
            [ODRADEK, "topic", "create", "big", "--partitions", "1", "--bootstrap-server", bootstrap],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        wait_until("the log", segment.exists, server)
    with segment.open("wb") as file:
        for offset in range(BATCHES):
            struct.pack_into(">q", batch, 0, offset)
            file.write(batch)
    return segment, BATCHES


def has_open(server: ServerProcess, file: Path) -> bool:
    links = Path(f"/proc/{server.pid}/fd")
    with contextlib.suppress(OSError):
        return any(os.readlink(link) == str(file) for link in links.iterdir())
    return False


def test_recovering_a_large_log(tmp_path: Path) -> None:
    """SIGTERM ends a recovery early. The next start recovers the whole log."""
    path = lone(tmp_path / "n")
    segment, end_offset = big_log(path)
    with running(path) as server:
        wait_until("recovery", lambda: has_open(server, segment), server)
        status, log = terminate(server)
    assert status == 0, log
    assert "topic=big" not in log
    assert not (tmp_path / "n" / "data" / CLEAN_SHUTDOWN_FILE).exists()
    with running(path) as server:
        wait_for_line(server, "log.recovered", "topic=big", f"log_end_offset={end_offset}")


@pytest.mark.parametrize(
    "kept_back",
    [ApiKey.BROKER_REGISTRATION, ApiKey.BROKER_HEARTBEAT],
    ids=["registering", "waiting to be unfenced"],
)
def test_a_controller_that_does_not_answer_the_broker(tmp_path: Path, kept_back: ApiKey) -> None:
    """A broker that is registering or still fenced stops on SIGTERM without an answer of its controller."""
    port, forwarded = free_ports(2)
    controller, broker = (
        lone_controller(tmp_path / "c", port, forwarded),
        lone_broker(tmp_path / "b", forwarded),
    )
    forwarder = Forwarder(forwarded, port, kept_back)
    with running(controller) as first:
        wait_for_line(first, "node.ready")
        with running(broker) as second:
            wait_until("the request", forwarder.has_kept_back.is_set, second)
            status, log = terminate(second)
    forwarder.close()
    assert status == 0, log
    assert "node.stopped" in log
    assert "node.ready" not in log


def test_a_controlled_shutdown_that_nobody_answers(tmp_path: Path) -> None:
    """A serving broker stops on SIGTERM although its controller hangs."""
    port = free_ports(1)[0]
    controller, broker = lone_controller(tmp_path / "c", port, port), lone_broker(tmp_path / "b", port)
    with running(controller) as first:
        wait_for_line(first, "node.ready")
        with running(broker) as second:
            wait_for_line(second, "node.ready")
            first.process.send_signal(signal.SIGSTOP)
            status, log = terminate(second)
    assert status == 0, log
    assert "broker.left_unannounced" in log


@pytest.mark.parametrize("where", ["replication-offset-checkpoint", "big-0/leader-epoch-checkpoint"])
def test_a_call_that_the_kernel_holds_is_left_behind(tmp_path: Path, where: str) -> None:
    """If a system call hangs, on the loop or in a worker, SIGTERM still ends the node. The end is logged and not marked
    clean."""
    path = lone(tmp_path / "n")
    with running(path) as server:
        wait_for_line(server, "node.ready")
    held = tmp_path / "n" / "data" / where
    held.parent.mkdir(exist_ok=True)
    held.unlink(missing_ok=True)
    os.mkfifo(held)
    with running(path) as server:
        wait_until("the held call", lambda: is_held(server), server)
        status, log = terminate(server)
    assert status == 1
    assert "The node ends without it" in log
    assert not (tmp_path / "n" / "data" / CLEAN_SHUTDOWN_FILE).exists()


def is_held(server: ServerProcess) -> bool:
    """True if a thread of the node is blocked in opening a named pipe."""
    with contextlib.suppress(OSError):
        tasks = Path(f"/proc/{server.pid}/task")
        return any("wait_for_partner" in (task / "wchan").read_text() for task in tasks.iterdir())
    return False
