"""Records of TLS that brought no plain bytes: how many of them a peer may send. PURE.

A key update costs OpenSSL 6 us and its sender a seventh of that. Tickets and alerts cost as much, and no request pays for
them. Honest peers send next to none: Java renews its keys after 128 GiB, and a server sends a ticket or two.

The allowance is refilled by time alone. If data refilled it, a peer could hide key updates among its requests.
"""

from __future__ import annotations

__all__ = ["IDLE_BYTES_MAX", "IDLE_PER_SECOND", "IDLE_RECORDS_MAX", "IdleBytes", "IdleRecords"]

IDLE_RECORDS_MAX = 100
"""Records without plain bytes that may come at once."""
IDLE_PER_SECOND = 1.0
"""Records without plain bytes that may come each second on top of it."""
RECORD_BYTES = 640
"""A record counts as one up to this size; a longer one counts as several, so that all together have 64 KiB at most.
A record may hold hundreds of tickets.
"""
IDLE_BYTES_MAX = 64 * 1024
PLAIN_BYTE_WORTH = 64
"""The number of encrypted bytes that each plain byte accounts for. A record with a single plain byte has fewer,
in TLS 1.3 and 1.2.
"""


class IdleRecords:
    """The account of one connection."""

    __slots__ = ("_paid_until",)

    def __init__(self) -> None:
        self._paid_until = float("-inf")
        """The time at which the whole allowance is there again."""

    def allow(self, records: int, encrypted_bytes: int, now: float) -> bool:
        """Count records without plain bytes, with their approximate encrypted bytes; false if they are too many."""
        count = max(records, encrypted_bytes // RECORD_BYTES)
        self._paid_until = max(self._paid_until, now) + count / IDLE_PER_SECOND
        return self._paid_until - now <= IDLE_RECORDS_MAX / IDLE_PER_SECOND


class IdleBytes:
    """The account of a connection whose records nobody counts: a client's, to a server that it has chosen."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = 0

    def allow(self, encrypted: int, plain: int) -> bool:
        """Count encrypted bytes, and the plain bytes in them; false if too many held no plain bytes."""
        self._bytes = max(0, self._bytes + encrypted - PLAIN_BYTE_WORTH * plain)
        return self._bytes <= IDLE_BYTES_MAX
