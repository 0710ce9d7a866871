"""Lines of the audit log: their events, their encoding, the account that pays for them, and their ring. PURE.

Names that a client chooses are cut, because one letter may take twelve bytes in JSON. All other parts of a line are
bounded, too.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from ipaddress import IPv6Network
from typing import TypeAlias

import attrs

__all__ = [
    "CHANGED",
    "DENIED",
    "FURTHER",
    "LOGGED_IN",
    "LOGIN_FAILED",
    "MISSING",
    "NAME_CHARACTERS_MAX",
    "REFUSALS",
    "TEXT_CHARACTERS_MAX",
    "Line",
    "Payer",
    "PreparedLine",
    "Value",
    "prepared",
]

DENIED, LOGGED_IN, LOGIN_FAILED, CHANGED = "denied", "login", "login.failed", "metadata.changed"
MISSING = "lines.missing"
FURTHER = "further"
"""The field of a line that stands for lines which were only counted."""
REFUSALS = frozenset((DENIED, LOGIN_FAILED))
"""The events of the second ring. Clients that the node keeps out cause them, so these never displace other events."""
NAME_CHARACTERS_MAX = 256
"""Longer names are cut: a client may make them up."""
TEXT_CHARACTERS_MAX = 1_000
"""Longer texts of all other kinds are cut."""
CHOSEN_NAMES = frozenset(("claimed", "resource", "client_id"))
"""The fields whose texts a client makes up. A principal comes from a credential, and `cluster events --by` needs
all of it.
"""
OVERHEAD_BYTES = 48
"""A line's bytes beside its body: the time, the braces and the line's end."""

Value: TypeAlias = str | int | bool | None


@attrs.frozen
class Payer:
    """The principal or address that has caused a line. Its bytes count for both, as far as they are known."""

    principal: str | None
    """None: the client has not authenticated."""
    address: str | None
    kind: tuple[Value, ...] = ()
    """The first line of a kind is always written for a principal."""

    @property
    def network(self) -> str | None:
        """The address, or for IPv6 its network, because one host has all 2^64 addresses of a network."""
        address = self.address
        if address is None or ":" not in address:
            return address
        try:
            return str(IPv6Network((address.partition("%")[0], 64), strict=False))
        except ValueError:
            return address


@attrs.frozen(eq=False)
class PreparedLine:
    """A line without its time, which may be put into the log many times."""

    event: str
    body: bytes
    payer: Payer | None

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return len(self.body) + OVERHEAD_BYTES


@attrs.define
class Line:
    """A line that waits; equal ones are counted."""

    time_ms: int
    body: bytes
    count: int = 1
    has_count: bool = False
    """True for a line that shows its count even if it is 1."""

    def encoded(self) -> bytes:
        """Encode the line as it is in the file."""
        time = datetime.fromtimestamp(self.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
        count = b', "count": %d' % self.count if self.count > 1 or self.has_count else b""
        return b'{"time": "%b", %b%b}\n' % (time.encode(), self.body, count)


def prepared(event: str, payer: Payer | None, **fields: Value) -> PreparedLine:
    """Prepare a line with these fields, in their order."""
    document = {"event": event, **{name: _cut(name, value) for name, value in fields.items()}}
    return PreparedLine(event, json.dumps(document, ensure_ascii=True)[1:-1].encode(), payer)


def _cut(name: str, value: Value) -> Value:
    most = NAME_CHARACTERS_MAX if name in CHOSEN_NAMES else TEXT_CHARACTERS_MAX
    if isinstance(value, str) and len(value) > most:
        return value[:most] + "..."
    return value
