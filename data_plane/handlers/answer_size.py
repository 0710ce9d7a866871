"""How large an answer may become. PURE.

Where a request names the same thing many times over, a small frame could ask for gigabytes: what is asked for once is
answered, and past the bound every further piece is refused instead.
"""

from __future__ import annotations

from wire.errors import ErrorCode

ANSWER_BYTES_MAX = 100 << 20
"""As much as a request may be by default (`socket.request.max.bytes`)."""
TOO_LARGE = ErrorCode.INVALID_REQUEST
TOO_LARGE_MESSAGE = "The answer would become too large; ask for less in one request."


class AnswerSize:
    """Counts the bytes of one answer, roughly."""

    __slots__ = ("_left",)

    def __init__(self, bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self._left = bytes_max

    @property
    def is_full(self) -> bool:
        """Whether something has found no room: nothing more needs to be built."""
        return self._left < 0

    def has_room(self, count: int) -> bool:
        """Take `count` bytes; once that is more than there are left, there is no room for anything more."""
        self._left = self._left - count if count <= self._left else -1
        return self._left >= 0


__all__ = ["ANSWER_BYTES_MAX", "TOO_LARGE", "TOO_LARGE_MESSAGE", "AnswerSize"]
