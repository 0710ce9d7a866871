"""A stranger sends logins of half a megabyte each that are slow to parse, and never completes one."""

from __future__ import annotations

from collections.abc import Iterator

from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place
from tests.attacks.raw import LoginRefused

WHO = "stranger"
MESSAGES = 100
CPU_SECONDS_EACH_MAX = 0.015
"""The connection, the bytes and the answer take 2 ms. A careless regular expression once took 100 ms."""
SIZE = 500_000
LOGINS = {
    "SCRAM, a long name": ("SCRAM-SHA-512", b"n,,n=" + b"a" * SIZE + b",r=abc"),
    "SCRAM, a name of escapes": ("SCRAM-SHA-256", b"n,,n=" + b"=2C" * (SIZE // 3) + b",r=abc"),
    "SCRAM, extensions": ("SCRAM-SHA-512", b"n,,n=a,r=abc" + b",a=b" * (SIZE // 4)),
    "SCRAM, another user": ("SCRAM-SHA-256", b"n,a=" + b"a" * SIZE),
    "PLAIN, many parts": ("PLAIN", b"\0" * SIZE),
    "PLAIN, a long password": ("PLAIN", b"\0carol\0" + b"a" * SIZE),
    "PLAIN, no text": ("PLAIN", b"\xff" * SIZE),
}


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Send each kind again and again. Every login must be refused at little cost."""
    count = max(5, int(MESSAGES * scale))
    for what, (mechanism, message) in LOGINS.items():
        refused = 0
        spent = []
        for _ in range(count):
            before = place.node.process.cpu_seconds()
            with place.stranger() as conn:
                conn.call(SaslHandshakeRequest(mechanism), 1)
                try:
                    conn.authenticate(message)
                except LoginRefused:
                    refused += 1
            spent.append(place.node.process.cpu_seconds() - before)
        # The smallest time counts, since the node may serve others at the same time.
        each = min(spent)
        held = refused == count and each < CPU_SECONDS_EACH_MAX
        note = f"{refused} of {count} refused, {1000 * each:.1f} ms of CPU at least"
        yield Outcome(f"{what}: refused, at little cost", held, note)
