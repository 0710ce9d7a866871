"""What a node says to systemd: that it has started, that its event loop turns, and that it stops."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import trio

from odradek.env.real import RealEnv
from odradek.node.supervision.service_manager import SHARE_OF_WATCHDOG, ServiceManager
from testkit.by_hand import KeptLog
from testkit.odradek_server import launch_odradek, prepare_odradek

RECEIVE_SECONDS_MAX = 60.0
WORD_BYTES_MAX = 4096


def receiver(path: Path) -> socket.socket:
    """Open the socket of a service manager."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    channel.bind(str(path))
    channel.settimeout(RECEIVE_SECONDS_MAX)
    return channel


def drain(channel: socket.socket) -> None:
    """Read all words that have come."""
    channel.setblocking(False)
    try:
        while channel.recv(WORD_BYTES_MAX):
            continue
    except BlockingIOError:
        channel.settimeout(RECEIVE_SECONDS_MAX)


@pytest.mark.long
def test_a_node_reports_its_start_its_life_and_its_end(tmp_path: Path) -> None:
    """A node says READY=1 once it serves, WATCHDOG=1 from its start on, and STOPPING=1 at a signal. A process that
    stood still goes on."""
    with receiver(tmp_path / "notify") as channel:
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}
        node = launch_odradek(prepare_odradek(tmp_path / "node"), environment=environment)
        try:
            said = set()
            while said != {b"READY=1", b"WATCHDOG=1"}:
                said.add(channel.recv(WORD_BYTES_MAX))
            os.kill(node.pid, signal.SIGSTOP)
            stopped = ""
            while stopped != "T":
                stopped = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()[0]
            drain(channel)
            os.kill(node.pid, signal.SIGCONT)
            assert channel.recv(WORD_BYTES_MAX) == b"WATCHDOG=1"
        finally:
            assert node.stop() == 0
        while channel.recv(WORD_BYTES_MAX) != b"STOPPING=1":
            pass


def test_words_reach_an_abstract_address() -> None:
    """An address that begins with @ is in Linux' abstract name space."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(f"\0odradek-test-{os.getpid()}")
        channel.settimeout(RECEIVE_SECONDS_MAX)
        manager = ServiceManager({"NOTIFY_SOCKET": f"@odradek-test-{os.getpid()}"}, KeptLog())
        assert manager.send("READY=1")
        assert channel.recv(WORD_BYTES_MAX) == b"READY=1"


def test_nobody_listens(tmp_path: Path) -> None:
    """Nothing is sent unless systemd has started the process. If its socket is missing, or its queue is full, a line is logged."""
    log = KeptLog()
    assert not ServiceManager({}, log).send("READY=1")
    assert log.events == []
    assert not ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}, log).send("READY=1")
    assert log.events == ["service_manager.not_reached"]
    with receiver(tmp_path / "full"):
        manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "full")}, log)
        while manager.send("WATCHDOG=1"):
            pass
    assert log.events == ["service_manager.not_reached"] * 2


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_whose_watchdog_it_is(environment: dict[str, str], seconds: float | None) -> None:
    """The watchdog counts only if systemd has named its period, and this process or none."""
    manager = ServiceManager({"NOTIFY_SOCKET": "@nobody", **environment}, KeptLog())
    assert manager.watchdog_seconds == seconds
    assert ServiceManager(environment, KeptLog()).watchdog_seconds is None


def test_a_watchdog_that_is_off_costs_no_task() -> None:
    """Without a watchdog the task ends at once. With one it sends three words in each period."""
    waits: list[float] = []

    class Waiting:
        """A clock that ends the task at its fourth wait."""

        def monotonic(self) -> float:
            return sum(waits)

        async def sleep_until(self, deadline: float) -> None:
            waits.append(deadline - sum(waits))
            if len(waits) == SHARE_OF_WATCHDOG + 1:
                raise EOFError

    async def main() -> None:
        await ServiceManager({}, KeptLog()).feed_watchdog(RealEnv().clock)
        clock: Any = Waiting()
        manager = ServiceManager({"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "3000000"}, KeptLog())
        with pytest.raises(EOFError):
            await manager.feed_watchdog(clock)
        assert waits == [1.0] * 4

    trio.run(main)
