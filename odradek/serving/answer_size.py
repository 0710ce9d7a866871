"""A limit for repeated descriptions in one answer. PURE.

A small request could ask for gigabytes if it names the same topic many times. As in Kafka, the description is
repeated as often as the request names the topic. The bytes that such repetitions add to the answer are
limited, and further repetitions are refused. The first description is always given, because a node has only a
limited number of topics.
"""

from __future__ import annotations

from odradek.wire.errors import ErrorCode

REPEATED_BYTES_MAX = 2 << 20
"""The maximum number of bytes of repetitions in one answer. About 90,000 small partitions have this size, and are
encoded in some 50 ms. Normal clients repeat nothing.
"""
TOO_LARGE = ErrorCode.INVALID_REQUEST
TOO_LARGE_MESSAGE = "The answer would become too large; ask for less in one request."


class RepeatedSize:
    """Counts approximately the bytes by which repetitions enlarge an answer."""

    __slots__ = ("_left",)

    def __init__(self, bytes_max: int = REPEATED_BYTES_MAX) -> None:
        self._left = bytes_max

    def has_room(self, count: int) -> bool:
        """Count `count` more bytes. Return False once the sum exceeds the limit; all later calls then return
        False, too.
        """
        self._left = self._left - count if count <= self._left else -1
        return self._left >= 0


__all__ = ["REPEATED_BYTES_MAX", "TOO_LARGE", "TOO_LARGE_MESSAGE", "RepeatedSize"]
