"""Strangers from several addresses fail to log in under long names, so that old lines of the audit log rotate away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from odradek.security.audit.audit_budgets import STRANGERS
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.attacks.clients.audit_flood import CHANGES, LETTER, REFUSALS, AuditFiles
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place
from tests.attacks.raw import LoginRefused

WHO = "stranger"
SECONDS = 60
ADDRESSES, AT_ONCE = 8, 4
TRIES_MIN = 400
"""Enough failed logins to use up the bytes that the audit log allows all strangers. Each login takes 3 KiB."""


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Fail to log in again and again, each time under another name."""
    files, cpu = AuditFiles(place.node), place.node.process.cpu_seconds()
    ends_at = time.monotonic() + SECONDS * scale

    def fail(number: int) -> int:
        tried = 0
        while time.monotonic() < ends_at or tried < TRIES_MIN // (ADDRESSES * AT_ONCE):
            name = f"{number}-{time.monotonic_ns()}-".ljust(255, LETTER)
            try:
                with place.stranger(source=f"127.0.2.{number % ADDRESSES + 1}") as conn:
                    conn.call(SaslHandshakeRequest("PLAIN"), 1)
                    conn.authenticate(f"\0{name}\0x".encode())
            except LoginRefused:
                tried += 1
        return tried

    with ThreadPoolExecutor(ADDRESSES * AT_ONCE) as threads:
        tried = sum(threads.map(fail, range(ADDRESSES * AT_ONCE)))
    cpu = place.node.process.cpu_seconds() - cpu
    told = files.wait_told("login.failed", tried)
    grown = files.grown_bytes(REFUSALS)
    bound = files.allowed_bytes(STRANGERS.bytes_at_once, STRANGERS.bytes_per_second)
    yield Outcome(
        "failed logins take so many bytes of the audit log, whatever number of addresses they come from",
        grown <= bound,
        f"{tried} logins, {cpu:.1f} s of CPU: {grown >> 10} KiB, allowed {bound / 1024:.0f}",
    )
    strange = [line for line in files.lines(CHANGES) if line["event"] in ("denied", "login.failed")]
    yield Outcome("failed logins displace no logins and changes", not strange, repr(strange[:1])[:100])
    yield Outcome("each failed login is written or counted", told >= tried, f"{told:.0f} of {tried}")
