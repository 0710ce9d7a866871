"""Strangers occupy all connections that the metrics page allows, and request it without end."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

from odradek.wire.messages.metadata import MetadataRequest
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place
from tests.attacks.raw import ATTACKERS_HOST, HOST

WHO = "stranger"
SILENT = 96
"""Three times as many connections as the metrics page allows."""
CROWD, SECONDS = 16, 10
GET = b"GET /metrics HTTP/1.1\r\n\r\n"


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Keep silent connections open while an honest scraper asks, then request the page from sixteen threads at once."""
    port = place.ports.METRICS
    with ExitStack() as stack:
        held = [stack.enter_context(_connected(port)) for _ in range(SILENT)]
        pages = 0
        for _ in range(5):
            with suppress(OSError):
                pages += "odradek_uptime_seconds" in place.node.page()
        yield Outcome(
            "silent connections keep no scraper of another address out", pages == 5, f"{pages} of 5 pages"
        )
        ended = sum(_ends(conn) for conn in held)
        yield Outcome("silent connections end", ended == SILENT, f"{ended} of {SILENT}")
    yield from _crowd(place, max(1.0, SECONDS * scale))


def _connected(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), 60, (ATTACKERS_HOST, 0))


def _ends(conn: socket.socket) -> bool:
    try:
        return not conn.recv(100)
    except TimeoutError:
        return False
    except OSError:
        return True


def _crowd(place: Place, seconds: float) -> Iterator[Outcome]:
    ends_at, got, began = time.monotonic() + seconds, [0] * CROWD, place.node.process.cpu_seconds()

    def ask(number: int) -> None:
        while time.monotonic() < ends_at:
            with suppress(OSError), _connected(place.ports.METRICS) as conn:
                conn.sendall(GET)
                while conn.recv(1 << 16):
                    pass
                got[number] += 1

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(CROWD)]
    for thread in threads:
        thread.start()
    answered, page = 0, ""
    with place.admin() as admin:
        while time.monotonic() < ends_at:
            admin.call(MetadataRequest([], False, False, False), 12)
            answered += 1
    with suppress(OSError):
        page = place.node.page()
    for thread in threads:
        thread.join()
    cpu = place.node.process.cpu_seconds() - began
    note = f"{sum(got)} pages and {answered} requests in {seconds:.0f} s, {cpu:.1f} s of CPU"
    yield Outcome("a crowd at the page leaves clients the loop", answered >= 5 * seconds, note)
    yield Outcome("a crowd at the page keeps no scraper out", "odradek_uptime_seconds" in page)
