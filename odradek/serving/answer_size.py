"""A bound for the repetitions in one answer. PURE.

Where a request names the same thing many times over, a small frame could ask for gigabytes. As in Kafka, each thing
is described once, and the description is repeated as often as the request names it. The bytes that repetitions add to
the answer are bounded; past the bound, each further one is refused. The first description is always given, since a
node has only a limited number of things.
"""

from __future__ import annotations

from odradek.wire.errors import ErrorCode

REPEATED_BYTES_MAX = 2 << 20
"""The bytes of about 90,000 partitions of the smallest size, encoded in some 50 ms. Clients ask for nothing twice."""
TOO_LARGE = ErrorCode.INVALID_REQUEST
TOO_LARGE_MESSAGE = "The answer would become too large; ask for less in one request."


class RepeatedSize:
    """Counts roughly the bytes by which repetitions make an answer larger."""

    __slots__ = ("_left",)

    def __init__(self, bytes_max: int = REPEATED_BYTES_MAX) -> None:
        self._left = bytes_max

    def has_room(self, count: int) -> bool:
        """Charge `count` bytes. Return False when fewer are left, and from then on for every repetition."""
        self._left = self._left - count if count <= self._left else -1
        return self._left >= 0


__all__ = ["REPEATED_BYTES_MAX", "TOO_LARGE", "TOO_LARGE_MESSAGE", "RepeatedSize"]
