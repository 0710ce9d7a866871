"""Crowds of connections stop half-way through a login, in each state that a login has, to leave no room for other
clients."""

from __future__ import annotations

import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

from odradek.wire.codec import encode
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place
from tests.attacks.raw import ATTACKERS_HOST, HOST, LoginRefused
from tests.attacks.strangers.handshake_flood import client_hello

WHO = "stranger"
CROWD = 1_200
DESCRIPTORS = 4_096
HALF_A_FRAME = struct.pack(">i", 60_000) + bytes(100)
TIMEOUT_SECONDS = 60.0


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Keep a crowd open in each state. Meanwhile log in from another address, and from the address of the crowd."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, DESCRIPTORS), most))
    hello = client_hello()
    chosen = _mechanism_chosen()
    states = {
        "connected, TLS": ("SASL_SSL", b""),
        "half a ClientHello": ("SASL_SSL", hello[:100]),
        "ClientHello sent": ("SASL_SSL", hello),
        "connected": ("SASL", b""),
        "half a frame": ("SASL", HALF_A_FRAME),
        "mechanism chosen": ("SASL", chosen),
        "half a token": ("SASL", chosen + struct.pack(">i", 400_000) + bytes(50)),
    }
    for state, (listener, first) in states.items():
        with ExitStack() as held:
            count = _hold(held, getattr(place.ports, listener), first, int(CROWD * scale))
            for source in (HOST, ATTACKERS_HOST):
                began = time.monotonic()
                where = "the same address" if source == ATTACKERS_HOST else "another address"
                rule = f"{state}: a client of {where} logs in"
                try:
                    place.client(tls=listener == "SASL_SSL", source=source).close()
                    yield Outcome(rule, True, f"{count} held, {time.monotonic() - began:.1f} s")
                except (OSError, LoginRefused) as error:
                    yield Outcome(rule, False, f"{count} held, {type(error).__name__}: {error}")


def _mechanism_chosen() -> bytes:
    request = struct.pack(">hhih", 17, 1, 1, 1) + b"x" + bytes(encode(SaslHandshakeRequest("PLAIN"), 1))
    return struct.pack(">i", len(request)) + request


def _hold(held: ExitStack, port: int, first: bytes, count: int) -> int:
    """Open `count` connections that send `first` and nothing more. Return how many the node accepted."""
    taken = 0
    for _ in range(count):
        with suppress(OSError):
            each = socket.create_connection((HOST, port), TIMEOUT_SECONDS, (ATTACKERS_HOST, 0))
            held.callback(each.close)
            each.sendall(first)
            taken += 1
    return taken
