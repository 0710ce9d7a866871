"""Lines of the audit log: their events, their encoding, and the accounts that pay for their bytes. PURE.

Names that a client chooses are cut, because one letter may take twelve bytes in JSON. All other parts of a line are
limited, too.
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
"""The field of a line that reports a number of lines which were only counted."""
REFUSALS = frozenset((DENIED, LOGIN_FAILED))
"""The events of the ring of refusals. Refused clients cause them, so they must not displace other events."""
NAME_CHARACTERS_MAX = 256
"""The maximum number of characters of a name; longer names are cut, because a client may invent them."""
TEXT_CHARACTERS_MAX = 1_000
"""The maximum number of characters of any other text; longer texts are cut."""
CHOSEN_NAMES = frozenset(("claimed", "resource", "client_id"))
"""The fields whose texts a client may invent. Principals are not among them, because they come from
credentials, and `cluster events --by` needs the whole name.
"""
OVERHEAD_BYTES = 48
"""The bytes of a line in addition to its body: time, braces and end of line."""

Value: TypeAlias = str | int | bool | None


@attrs.frozen
class Payer:
    """The principal or address that has caused a line and pays for its bytes. If both are known, both pay."""

    principal: str | None
    """The principal; None if the client has not authenticated."""
    address: str | None
    kind: tuple[Value, ...] = ()
    """The kind of the line. A principal's first line of each kind is always written."""

    @property
    def network(self) -> str | None:
        """The IPv4 address, or the network of an IPv6 address, because one host can use all 2^64 addresses of a
        network.
        """
        address = self.address
        if address is None or ":" not in address:
            return address
        try:
            return str(IPv6Network((address.partition("%")[0], 64), strict=False))
        except ValueError:
            return address


@attrs.frozen(eq=False)
class PreparedLine:
    """A line without its time, so that it can be written many times."""

    event: str
    body: bytes
    payer: Payer | None

    @property
    def size(self) -> int:
        """The bytes of the line in the file."""
        return len(self.body) + OVERHEAD_BYTES


@attrs.define
class Line:
    """A line that waits to be written; `count` is the number of equal lines that it represents."""

    time_ms: int
    body: bytes
    count: int = 1
    has_count: bool = False
    """True if the line shows `count` even when it is 1."""

    def encoded(self) -> bytes:
        """Encode the line as it is written to the file."""
        time = datetime.fromtimestamp(self.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
        count = b', "count": %d' % self.count if self.count > 1 or self.has_count else b""
        return b'{"time": "%b", %b%b}\n' % (time.encode(), self.body, count)


def prepared(event: str, payer: Payer | None, **fields: Value) -> PreparedLine:
    """Make a line with these fields, in this order, without its time."""
    document = {"event": event, **{name: _cut(name, value) for name, value in fields.items()}}
    return PreparedLine(event, json.dumps(document, ensure_ascii=True)[1:-1].encode(), payer)


def _cut(name: str, value: Value) -> Value:
    most = NAME_CHARACTERS_MAX if name in CHOSEN_NAMES else TEXT_CHARACTERS_MAX
    if isinstance(value, str) and len(value) > most:
        return value[:most] + "..."
    return value
