"""Two addresses replay one recorded ClientHello, which costs them nothing, and fill all places for handshakes."""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import attrs

from odradek.wire.messages.api_versions import ApiVersionsRequest
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place
from tests.attacks.raw import HOST

WHO = "stranger"
SOURCES = ("127.0.0.3", "127.0.0.4")
SOCKETS_EACH = 200
TRIES = 20
HELLOS_BEFORE = 400
"""How many hellos are sent before honest clients come. The node has fewer places for handshakes."""
WARM_SECONDS_MAX = 60.0
ASK = ApiVersionsRequest("attack", "1.0")


def client_hello() -> bytes:
    """Return the first bytes that an honest client sends in a handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=HOST).do_handshake()
    return outgoing.read()


@attrs.define
class Flood:
    """Many sockets in one thread: each sends the hello, waits for an answer, and starts again."""

    port: int
    per_source: int
    hello: bytes = attrs.field(factory=client_hello)
    sent: int = 0
    _stop: threading.Event = attrs.field(factory=threading.Event)
    _open: selectors.BaseSelector = attrs.field(factory=selectors.DefaultSelector)

    def run(self) -> None:
        for source in SOURCES:
            for _ in range(self.per_source):
                self._begin(source)
        while not self._stop.is_set():
            for key, events in self._open.select(0.1):
                self._go_on(key, events)
        for key in list(self._open.get_map().values()):
            self._end(key)

    def stop(self) -> None:
        self._stop.set()

    def _begin(self, source: str) -> None:
        fresh = socket.socket()
        fresh.setblocking(False)
        fresh.bind((source, 0))
        with suppress(BlockingIOError):
            fresh.connect((HOST, self.port))
        self._open.register(fresh, selectors.EVENT_WRITE, source)

    def _end(self, key: selectors.SelectorKey) -> None:
        self._open.unregister(key.fileobj)
        assert isinstance(key.fileobj, socket.socket)
        key.fileobj.close()

    def _go_on(self, key: selectors.SelectorKey, events: int) -> None:
        assert isinstance(key.fileobj, socket.socket)
        with suppress(OSError):
            if events & selectors.EVENT_WRITE:
                key.fileobj.send(self.hello)
                self._open.modify(key.fileobj, selectors.EVENT_READ, key.data)
                self.sent += 1
                return
            key.fileobj.recv(65_536)
        self._end(key)
        self._begin(key.data)


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Let honest clients connect one after the other, first during the flood and then after it."""
    refused = place.node.metric("odradek_handshakes_refused_total")
    flood = Flood(place.ports.TLS, SOCKETS_EACH)
    thread = threading.Thread(target=flood.run)
    thread.start()
    tries = max(4, int(TRIES * scale))
    try:
        deadline = time.monotonic() + WARM_SECONDS_MAX
        while flood.sent < HELLOS_BEFORE and time.monotonic() < deadline:
            thread.join(0.05)
        let_in, slowest = _come_in(place, tries)
    finally:
        flood.stop()
        thread.join()
    refused = place.node.metric("odradek_handshakes_refused_total") - refused
    note = f"{let_in} of {tries}, the slowest in {slowest:.1f} s, {flood.sent} hellos, {refused:.0f} refused"
    yield Outcome("clients of a third address come in during the flood", let_in == tries, note)
    let_in, slowest = _come_in(place, tries)
    yield Outcome("clients come in after the flood", let_in == tries, f"the slowest in {slowest:.1f} s")


def _come_in(place: Place, tries: int) -> tuple[int, float]:
    """Count the honest clients that are let in and answered, and time the slowest."""
    let_in, slowest = 0, 0.0
    for _ in range(tries):
        began = time.monotonic()
        with suppress(OSError), place.stranger("TLS", source=HOST) as client:
            let_in += client.call(ASK, 3).error_code == 0
        slowest = max(slowest, time.monotonic() - began)
    return let_in, slowest
