"""A limit for TLS records without plain bytes, such as key updates, that a peer may send. PURE.

A key update costs the receiver's OpenSSL 6 us, and costs the sender a seventh of that. Tickets and alerts
cost as much, and no quota is charged for them. Normal peers send very few: Java renews its keys after 128
GiB, and a server sends a ticket or two.

The allowance is refilled by time alone. If data refilled it, a peer could hide key updates among its requests.
"""

from __future__ import annotations

__all__ = ["IDLE_BYTES_MAX", "IDLE_PER_SECOND", "IDLE_RECORDS_MAX", "IdleBytes", "IdleRecords"]

IDLE_RECORDS_MAX = 100
"""The maximum number of records without plain bytes that may arrive at once."""
IDLE_PER_SECOND = 1.0
"""The number of records without plain bytes by which the allowance grows per second."""
RECORD_BYTES = 640
"""The largest size in bytes of a record that counts as one; a longer record counts as several. So the whole allowance
is at most 64 KiB. (A record may hold hundreds of tickets.)
"""
IDLE_BYTES_MAX = 64 * 1024
PLAIN_BYTE_WORTH = 64
"""The encrypted bytes that are accepted for each plain byte. In TLS 1.2 and 1.3, even a record with a single
plain byte has fewer encrypted bytes than this.
"""


class IdleRecords:
    """The allowance of one connection for TLS records without plain bytes."""

    __slots__ = ("_paid_until",)

    def __init__(self) -> None:
        self._paid_until = float("-inf")
        """The time at which the whole allowance is available again."""

    def allow(self, records: int, encrypted_bytes: int, now: float) -> bool:
        """Count TLS records without plain bytes, of about `encrypted_bytes` together. Return false if they are too
        many.
        """
        count = max(records, encrypted_bytes // RECORD_BYTES)
        self._paid_until = max(self._paid_until, now) + count / IDLE_PER_SECOND
        return self._paid_until - now <= IDLE_RECORDS_MAX / IDLE_PER_SECOND


class IdleBytes:
    """The allowance of a client's connection to a server. Unlike `IdleRecords`, it counts bytes instead of records."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = 0

    def allow(self, encrypted: int, plain: int) -> bool:
        """Count encrypted bytes and the plain bytes in them. Return false if too many carried no plain bytes."""
        self._bytes = max(0, self._bytes + encrypted - PLAIN_BYTE_WORTH * plain)
        return self._bytes <= IDLE_BYTES_MAX
